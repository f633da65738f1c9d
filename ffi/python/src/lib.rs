//! The python interface of Phalanx.
