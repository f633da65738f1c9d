//! What stands in for RDMA in a build without it: nothing of this can be made.

use std::convert::Infallible;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::{Card, RdmaAddress, RdmaSettings};
use crate::sys::Uninherited;
use crate::transport::lane::Lane;
use crate::transport::sleep::Sleeper;

/// The devices of a member.
#[derive(Debug)]
pub(in crate::transport) struct Rails(Infallible);

impl Rails {
    pub(in crate::transport) fn open(_: &RdmaSettings, _: IpAddr) -> Result<Self, String> {
        Err("this Phalanx was built without RDMA: build it with --features rdma".into())
    }

    pub(in crate::transport) fn address(&self) -> RdmaAddress {
        match self.0 {}
    }

    pub(in crate::transport) fn offer(&self, _: u8) -> Result<Offered, String> {
        match self.0 {}
    }
}

/// A link that waits for the peer's side.
pub(in crate::transport) struct Offered(Infallible);

impl Offered {
    pub(in crate::transport) fn card(&self) -> Card {
        match self.0 {}
    }

    pub(in crate::transport) fn connect(self, _: &Card) -> Result<Connected, String> {
        match self.0 {}
    }
}

/// A link both of whose sides are known.
pub(in crate::transport) struct Connected(Infallible);

impl Connected {
    pub(in crate::transport) fn events(&self) -> Option<BorrowedFd<'_>> {
        match self.0 {}
    }

    pub(in crate::transport) fn way(&self) -> String {
        match self.0 {}
    }

    pub(in crate::transport) fn send_trial(&self) -> Result<(), String> {
        match self.0 {}
    }

    pub(in crate::transport) fn hear_trial(&self) -> Result<bool, String> {
        match self.0 {}
    }

    pub(in crate::transport) fn into_lane(
        self,
        _: Uninherited<OwnedFd>,
        _: Arc<Sleeper>,
        _: usize,
    ) -> std::io::Result<Box<dyn Lane>> {
        match self.0 {}
    }
}
