//! The c interface of Phalanx.
