//! The algorithms, a family a file. Each file opens with the idea, its steps and bytes, and where it comes from.
//!
//! They write into a [`Builder`](super::builder::Builder), speak of the members of a
//! [`Group`](super::builder::Group) by position, and know nothing of requests, so that the hierarchical ones are made
//! of the flat ones. Words used throughout: n members, N elements in all; *own*: this rank's contribution; *part*: the
//! piece of a buffer that one position stands for; *finish*: whether this group's reduction is the last one.

pub(super) mod binomial;
pub(super) mod bruck;
pub(super) mod chain;
pub(super) mod direct;
pub(super) mod dissemination;
pub(super) mod double_tree;
pub(super) mod doubling;
pub(super) mod halving;
pub(super) mod hierarchical;
pub(super) mod linear;
pub(super) mod ordered;
pub(super) mod pairwise;
pub(super) mod ring;
