//! A reliable connected queue pair between two rings: bytes written to `outgoing` are moved into the peer's `incoming`.

use std::ffi::{c_int, c_uint};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use super::raw::{self, mask};
use super::{Domain, Region, Uninherited};
use crate::sys::RingMapping;

/// How many requests each queue holds.
#[derive(Clone, Copy, Debug)]
pub struct Depths {
    /// Requests to send that are not complete.
    pub send: u32,
    /// Posted receives.
    pub receive: u32,
    /// Messages up to this many bytes travel inside their request, if the device can.
    pub inline: u32,
}

/// Where the other queue pair is, and how to get there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The number of its queue pair.
    pub queue_pair: u32,
    /// The number of its first packet.
    pub first_packet: u32,
    /// Its address on an InfiniBand link.
    pub lid: u16,
    /// Its global identifier.
    pub gid: [u8; 16],
    /// The largest packet on the way, as the code of the specification.
    pub mtu: u8,
    /// The start of its ring.
    pub address: u64,
    /// The key to its ring.
    pub key: u32,
}

/// How this side's packets leave.
#[derive(Clone, Copy, Debug)]
pub struct Local {
    /// The port.
    pub port: u8,
    /// The place of its global identifier in the port's table.
    pub gid_index: u8,
    /// Whether to route by global identifier: always on Ethernet.
    pub global: bool,
    /// The traffic class of the packets.
    pub traffic_class: u8,
    /// The number of the first packet.
    pub first_packet: u32,
}

/// What has been completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// What the request was named.
    pub request: u64,
    /// 0, or why it failed: see [`super::status_in_words`].
    pub status: u32,
    /// The adapter's own number for a failure.
    pub vendor: u32,
    /// How many bytes came into the ring; 0 for a word alone.
    pub bytes: u32,
    /// The word that came along.
    pub word: u32,
}

/// How many completions are taken at once.
const AT_ONCE: usize = 32;

/// The queue pair, its completion queues and channel, and its two rings.
#[derive(Debug)]
pub struct Link {
    domain: Arc<Domain>,
    channel: NonNull<raw::ibv_comp_channel>,
    channel_fd: Option<Uninherited<BorrowedFd<'static>>>,
    sent: Option<NonNull<raw::ibv_cq>>,
    received: Option<NonNull<raw::ibv_cq>>,
    queue_pair: Option<NonNull<raw::ibv_qp>>,
    regions: [Option<NonNull<raw::ibv_mr>>; 2],
    incoming: RingMapping,
    outgoing: RingMapping,
    inline: u32,
}

// SAFETY: the library's calls are safe from any thread, and nothing here belongs to one.
unsafe impl Send for Link {}

impl Link {
    /// Makes the queue pair and registers the rings. Receives may be posted at once.
    ///
    /// # Errors
    ///
    /// What could not be had, and the system's reason.
    pub fn new(
        domain: Arc<Domain>,
        incoming: RingMapping,
        outgoing: RingMapping,
        depths: Depths,
        port: u8,
    ) -> Result<Self, (&'static str, io::Error)> {
        let functions = domain.context.functions();
        let context = domain.context.raw.as_ptr();
        // SAFETY: an open context.
        let channel = unsafe { (functions.create_comp_channel)(context) };
        let channel = NonNull::new(channel).ok_or_else(|| ("a completion channel", io::Error::last_os_error()))?;
        // From here on dropping `link` gives back what there is.
        let mut link = Self {
            domain,
            channel,
            channel_fd: None,
            sent: None,
            received: None,
            queue_pair: None,
            regions: [None; 2],
            incoming,
            outgoing,
            inline: 0,
        };
        // SAFETY: the channel was just made; its descriptor is open as long as it is.
        let fd = unsafe { BorrowedFd::borrow_raw(channel.as_ref().fd) };
        rustix::io::ioctl_fionbio(fd, true).map_err(|error| ("a completion channel", error.into()))?;
        link.channel_fd = Some(fd.into());
        let queue = |depth: u32| {
            // SAFETY: an open context and a channel of it.
            let made = unsafe { (functions.create_cq)(context, depth as c_int, null_mut(), channel.as_ptr(), 0) };
            NonNull::new(made).ok_or_else(|| ("a completion queue", io::Error::last_os_error()))
        };
        let sent = *link.sent.insert(queue(depths.send)?);
        let received = *link.received.insert(queue(depths.receive)?);
        link.queue_pair = Some(link.make_queue_pair(sent, received, depths)?);
        let writable = raw::IBV_ACCESS_LOCAL_WRITE | raw::IBV_ACCESS_REMOTE_WRITE;
        link.regions[0] = Some(link.register(&link.incoming, writable)?);
        link.regions[1] = Some(link.register(&link.outgoing, 0)?);
        link.initialise(port).map_err(|error| ("a queue pair on this port", error))?;
        Ok(link)
    }

    fn make_queue_pair(
        &mut self,
        sent: NonNull<raw::ibv_cq>,
        received: NonNull<raw::ibv_cq>,
        depths: Depths,
    ) -> Result<NonNull<raw::ibv_qp>, (&'static str, io::Error)> {
        let mut failure = None;
        // Devices refuse what they cannot carry inline, instead of giving what they can.
        for inline in [depths.inline, depths.inline / 4, 0] {
            let mut wanted = raw::ibv_qp_init_attr {
                qp_context: null_mut(),
                send_cq: sent.as_ptr(),
                recv_cq: received.as_ptr(),
                srq: null_mut(),
                cap: raw::ibv_qp_cap {
                    max_send_wr: depths.send,
                    max_recv_wr: depths.receive,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_data: inline,
                },
                qp_type: raw::IBV_QPT_RC,
                sq_sig_all: 0,
            };
            // SAFETY: a domain, two queues of its context and a structure that may be written.
            let made = unsafe { (self.functions().create_qp)(self.domain.raw.as_ptr(), &raw mut wanted) };
            if let Some(made) = NonNull::new(made) {
                self.inline = wanted.cap.max_inline_data.min(depths.inline);
                return Ok(made);
            }
            failure = Some(io::Error::last_os_error());
        }
        Err(("a queue pair", failure.unwrap_or_else(|| io::ErrorKind::Other.into())))
    }

    fn register(&self, ring: &RingMapping, access: c_int) -> Result<NonNull<raw::ibv_mr>, (&'static str, io::Error)> {
        // The memory is shared and mapped twice; once is enough for the device.
        let (start, bytes) = (ring.start().as_ptr().cast(), ring.bytes());
        // SAFETY: the range is mapped, and stays so until after the registration is given back in `drop`.
        let made = unsafe { (self.functions().reg_mr)(self.domain.raw.as_ptr(), start, bytes, access) };
        NonNull::new(made).ok_or_else(|| ("registered memory", io::Error::last_os_error()))
    }

    fn functions(&self) -> &'static raw::Functions {
        self.domain.context.functions()
    }

    fn queue_pair(&self) -> io::Result<NonNull<raw::ibv_qp>> {
        self.queue_pair.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn modify(&self, attributes: &mut raw::ibv_qp_attr, what: c_int) -> io::Result<()> {
        let queue_pair = self.queue_pair()?;
        // SAFETY: a queue pair of our own, and attributes whose fields in `what` are set.
        match unsafe { (self.functions().modify_qp)(queue_pair.as_ptr(), attributes, what) } {
            0 => Ok(()),
            -1 => Err(io::Error::last_os_error()),
            status => Err(io::Error::from_raw_os_error(status)),
        }
    }

    fn initialise(&self, port: u8) -> io::Result<()> {
        let mut attributes = attributes(raw::IBV_QPS_INIT);
        attributes.port_num = port;
        attributes.qp_access_flags = raw::IBV_ACCESS_REMOTE_WRITE as c_uint;
        self.modify(&mut attributes, mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS)
    }

    /// Connects to the other queue pair: from now on bytes may come and be sent.
    pub fn connect(&self, local: &Local, remote: &Remote) -> io::Result<()> {
        let mut attributes = attributes(raw::IBV_QPS_RTR);
        attributes.path_mtu = remote.mtu.into();
        attributes.dest_qp_num = remote.queue_pair;
        attributes.rq_psn = remote.first_packet;
        attributes.max_dest_rd_atomic = 1;
        // 0.64 ms until a sender that found no receive tries again. Credits see to it that this is never needed.
        attributes.min_rnr_timer = 12;
        attributes.ah_attr.dlid = remote.lid;
        attributes.ah_attr.port_num = local.port;
        attributes.ah_attr.is_global = local.global.into();
        if local.global {
            attributes.ah_attr.grh.dgid.raw = remote.gid;
            attributes.ah_attr.grh.sgid_index = local.gid_index;
            attributes.ah_attr.grh.hop_limit = 64;
            attributes.ah_attr.grh.traffic_class = local.traffic_class;
        }
        let what = mask::STATE
            | mask::AV
            | mask::PATH_MTU
            | mask::DEST_QPN
            | mask::RQ_PSN
            | mask::MAX_DEST_RD_ATOMIC
            | mask::MIN_RNR_TIMER;
        self.modify(&mut attributes, what)?;
        attributes.qp_state = raw::IBV_QPS_RTS;
        attributes.sq_psn = local.first_packet;
        // 4.096 us * 2^18: a packet without answer is repeated after a second, seven times. A switch that changes its
        // ways, or a host that is paused, is outlived; a host that is gone is noticed within ten seconds of sending.
        attributes.timeout = 18;
        attributes.retry_cnt = 7;
        attributes.rnr_retry = 6;
        attributes.max_rd_atomic = 1;
        let what =
            mask::STATE | mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::SQ_PSN | mask::MAX_QP_RD_ATOMIC;
        self.modify(&mut attributes, what)
    }

    /// The number of the queue pair.
    pub fn number(&self) -> u32 {
        // SAFETY: a queue pair of our own.
        self.queue_pair.map_or(0, |queue_pair| unsafe { queue_pair.as_ref().qp_num })
    }

    /// Where the peer writes: the start of the incoming ring, and the key to it.
    pub fn target(&self) -> (u64, u32) {
        // SAFETY: a registration of our own.
        let key = self.regions[0].map_or(0, |region| unsafe { region.as_ref().rkey });
        (self.incoming.start().as_ptr() as u64, key)
    }

    /// What the peer writes to. The device does so between its posting and the completion that tells of it.
    pub fn incoming(&self) -> &RingMapping {
        &self.incoming
    }

    /// What is written to the peer. Bytes that are posted must not change until the peer has them.
    pub fn outgoing(&self) -> &RingMapping {
        &self.outgoing
    }

    /// Becomes readable when a queue that was armed has a completion.
    pub fn events(&self) -> Option<BorrowedFd<'_>> {
        self.channel_fd.as_ref().map(|fd| fd.as_fd())
    }

    /// Posts receives for `count` messages. They need no memory: bytes go to the ring.
    pub fn post_receives(&self, count: u32) -> io::Result<()> {
        let queue_pair = self.queue_pair()?;
        for _ in 0..count {
            let mut request = raw::ibv_recv_wr { wr_id: 0, next: null_mut(), sg_list: null_mut(), num_sge: 0 };
            let mut refused = null_mut();
            // SAFETY: a queue pair of our own; the device's table is complete in an open context.
            let status = unsafe {
                let post = (*self.domain.context.raw.as_ptr()).ops.post_recv.ok_or(io::ErrorKind::Unsupported)?;
                post(queue_pair.as_ptr(), &raw mut request, &raw mut refused)
            };
            if status != 0 {
                return Err(io::Error::from_raw_os_error(status.abs()));
            }
        }
        Ok(())
    }

    /// Writes `bytes` bytes of the outgoing ring from `at` on to the same place of the peer's ring, and `word` with them.
    /// None of both rings' ends may lie between.
    pub fn post_write(
        &self,
        remote: &Remote,
        at: usize,
        bytes: usize,
        word: u32,
        named: Option<u64>,
    ) -> io::Result<()> {
        let ring = self.outgoing.bytes();
        if at >= ring || bytes > ring - at {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: a registration of our own.
        let lkey = self.regions[1].map_or(0, |region| unsafe { region.as_ref().lkey });
        let place =
            raw::ibv_sge { addr: self.outgoing.start().as_ptr() as u64 + at as u64, length: bytes as u32, lkey };
        self.post_place(remote, place, at, word, named)
    }

    /// As [`Self::post_write`], from `source`, which lies in `region`. The device reads it until the completion, and the
    /// region is to be kept as long.
    pub fn post_write_from(
        &self,
        remote: &Remote,
        region: &Region,
        (source, bytes): (*const u8, usize),
        at: usize,
        word: u32,
        named: u64,
    ) -> io::Result<()> {
        let ring = self.outgoing.bytes();
        let lkey = region.key(source, bytes).filter(|_| at < ring && bytes <= ring - at);
        let lkey = lkey.ok_or(io::ErrorKind::InvalidInput)?;
        let place = raw::ibv_sge { addr: source.addr() as u64, length: bytes as u32, lkey };
        self.post_place(remote, place, at, word, Some(named))
    }

    fn post_place(
        &self,
        remote: &Remote,
        mut place: raw::ibv_sge,
        at: usize,
        word: u32,
        named: Option<u64>,
    ) -> io::Result<()> {
        let mut request = send_request(raw::IBV_WR_RDMA_WRITE_WITH_IMM, word, named);
        (request.sg_list, request.num_sge) = (&raw mut place, 1);
        (request.remote_addr, request.rkey) = (remote.address.wrapping_add(at as u64), remote.key);
        if place.length <= self.inline {
            request.send_flags |= raw::IBV_SEND_INLINE;
        }
        self.post_send(&mut request)
    }

    /// Sends a word alone.
    pub fn post_word(&self, word: u32, named: Option<u64>) -> io::Result<()> {
        self.post_send(&mut send_request(raw::IBV_WR_SEND_WITH_IMM, word, named))
    }

    fn post_send(&self, request: &mut raw::ibv_send_wr) -> io::Result<()> {
        let (queue_pair, mut refused) = (self.queue_pair()?, null_mut());
        // SAFETY: a queue pair of our own; the request and its place are read before the call returns; the memory it
        // names is registered and lives as long as the queue pair.
        let status = unsafe {
            let post = (*self.domain.context.raw.as_ptr()).ops.post_send.ok_or(io::ErrorKind::Unsupported)?;
            post(queue_pair.as_ptr(), request, &raw mut refused)
        };
        if status == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(status.abs())) }
    }

    /// Takes the queue pair down: when this returns, the device reads and writes nothing for it any more. What it told and
    /// was not polled may be lost.
    pub fn tear_down(&mut self) {
        if let Some(queue_pair) = self.queue_pair.take() {
            // SAFETY: made by `new`, and given back once.
            let status = unsafe { (self.functions().destroy_qp)(queue_pair.as_ptr()) };
            debug_assert_eq!(status, 0, "the queue pair of an RDMA link is still in use");
        }
    }

    /// Appends what has been sent and was named.
    pub fn poll_sent(&self, found: &mut Vec<Completion>) -> io::Result<()> {
        self.poll(self.sent, found)
    }

    /// Appends what has come.
    pub fn poll_received(&self, found: &mut Vec<Completion>) -> io::Result<()> {
        self.poll(self.received, found)
    }

    fn poll(&self, queue: Option<NonNull<raw::ibv_cq>>, found: &mut Vec<Completion>) -> io::Result<()> {
        let Some(queue) = queue else { return Ok(()) };
        loop {
            let mut taken = [raw::ibv_wc::default(); AT_ONCE];
            // SAFETY: a queue of our own, and room for as many completions as are asked for.
            let count = unsafe {
                let poll = (*self.domain.context.raw.as_ptr()).ops.poll_cq.ok_or(io::ErrorKind::Unsupported)?;
                poll(queue.as_ptr(), AT_ONCE as c_int, taken.as_mut_ptr())
            };
            let count = usize::try_from(count).map_err(|_| io::Error::other("the completion queue failed"))?;
            found.extend(taken.iter().take(count).map(|one| {
                let wrote = one.status == raw::IBV_WC_SUCCESS && one.opcode == raw::IBV_WC_RECV_RDMA_WITH_IMM;
                Completion {
                    request: one.wr_id,
                    status: one.status,
                    vendor: one.vendor_err,
                    bytes: if wrote { one.byte_len } else { 0 },
                    word: u32::from_be(one.imm_data),
                }
            }));
            if count < AT_ONCE {
                return Ok(());
            }
        }
    }

    /// From now on the next completion of what comes, and if `also_sent` of what is sent, makes [`Self::events`] readable.
    /// What came before this is still to be polled for.
    pub fn arm(&self, also_sent: bool) -> io::Result<()> {
        self.forget_events();
        let sent = self.sent.filter(|_| also_sent);
        for queue in [self.received, sent].into_iter().flatten() {
            // SAFETY: a queue of our own.
            let status = unsafe {
                let arm = (*self.domain.context.raw.as_ptr()).ops.req_notify_cq.ok_or(io::ErrorKind::Unsupported)?;
                arm(queue.as_ptr(), 0)
            };
            if status != 0 {
                return Err(io::Error::from_raw_os_error(status.abs()));
            }
        }
        Ok(())
    }

    /// Takes what made the channel readable.
    fn forget_events(&self) {
        if self.channel_fd.is_none() {
            return;
        }
        loop {
            let (mut queue, mut nothing) = (null_mut(), null_mut());
            // SAFETY: a channel of our own, which does not block.
            unsafe {
                if (self.functions().get_cq_event)(self.channel.as_ptr(), &raw mut queue, &raw mut nothing) != 0 {
                    return;
                }
                (self.functions().ack_cq_events)(queue, 1);
            }
        }
    }
}

fn attributes(state: c_uint) -> raw::ibv_qp_attr {
    // SAFETY: numbers and arrays of them, for which zero is a value.
    let mut attributes: raw::ibv_qp_attr = unsafe { std::mem::zeroed() };
    attributes.qp_state = state;
    attributes
}

fn send_request(opcode: c_uint, word: u32, named: Option<u64>) -> raw::ibv_send_wr {
    raw::ibv_send_wr {
        wr_id: named.unwrap_or(0),
        next: null_mut(),
        sg_list: null_mut(),
        num_sge: 0,
        opcode,
        send_flags: if named.is_some() { raw::IBV_SEND_SIGNALED } else { 0 },
        imm_data: word.to_be(),
        remote_addr: 0,
        rkey: 0,
        _rest: [0; 9],
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let functions = self.functions();
        self.forget_events();
        // SAFETY: each was made by `new` and is given back once, users before what they use: after the queue pair is gone
        // the device touches no memory, after the registrations are gone no key leads to it, and only then, when the
        // fields are dropped, is it unmapped.
        unsafe {
            let mut status = 0;
            if let Some(queue_pair) = self.queue_pair.take() {
                status |= (functions.destroy_qp)(queue_pair.as_ptr());
            }
            for region in self.regions.into_iter().flatten() {
                status |= (functions.dereg_mr)(region.as_ptr());
            }
            for queue in [self.sent, self.received].into_iter().flatten() {
                status |= (functions.destroy_cq)(queue.as_ptr());
            }
            self.channel_fd = None;
            status |= (functions.destroy_comp_channel)(self.channel.as_ptr());
            debug_assert_eq!(status, 0, "something of an RDMA link is still in use");
        }
    }
}
