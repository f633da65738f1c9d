//! The names of the algorithms and of the transports.

use std::fmt;
use std::str::FromStr;

macro_rules! named {
    (
        $(#[$outer:meta])* $what:literal $name:ident {
            $($(#[$inner:meta])* $variant:ident = $code:literal, $text:literal;)*
        }
        // Told, but not asked for.
        $(told { $($(#[$also:meta])* $told:ident = $number:literal, $word:literal;)* })?
    ) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name { $($(#[$inner])* $variant = $code,)* $($($(#[$also])* $told = $number,)*)? }

        impl $name {
            /// Every value that can be asked for.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// The name used on the command line, in the environment and in messages.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)* $($($name::$told => $word,)*)? }
            }

            /// The value with this code on the wire.
            pub fn from_code(code: u8) -> Option<$name> {
                let told: &[$name] = &[$($($name::$told,)*)?];
                Self::ALL.iter().chain(told).copied().find(|value| *value as u8 == code)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let wanted = text.replace('-', "_");
                Self::ALL.iter().copied().find(|value| value.name() == wanted).ok_or_else(|| {
                    let names: Vec<_> = Self::ALL.iter().map(|value| value.name()).collect();
                    format!("unknown {} {text:?}; expected one of {}", $what, names.join(", "))
                })
            }
        }
    };
}
pub(super) use named;

named! {
    /// The way a collective goes: the shape of its traffic. `docs/algorithms.md` gives the steps and bytes of each.
    "algorithm" Algorithm {
        /// Neighbour to neighbour, n - 1 steps a phase: fewest bytes, most steps.
        Ring = 0, "ring";
        /// Two complementary binary trees, half of the data on each, pipelined.
        DoubleTree = 1, "double_tree";
        /// Exchanges the whole with partners at distance 1, 2, 4, ...: fewest steps.
        RecursiveDoubling = 2, "recursive_doubling";
        /// Reduce-scatter by recursive halving, allgather by recursive doubling.
        HalvingDoubling = 3, "halving_doubling";
        /// Everyone sends everything to everyone: one step.
        OneShot = 4, "one_shot";
        /// Direct reduce-scatter, then direct allgather: two steps with the ring's bytes.
        TwoShot = 5, "two_shot";
        /// A binomial tree from or to the root.
        Binomial = 6, "binomial";
        /// Bruck's algorithm: log2 n steps of growing blocks, any number of ranks.
        Bruck = 7, "bruck";
        /// n - 1 exchanges with partners at growing distance.
        Pairwise = 8, "pairwise";
        /// Straight between the root and each other rank.
        Linear = 9, "linear";
        /// In-host, between hosts, in-host.
        Hierarchical = 10, "hierarchical";
        /// Rounds of zero-byte messages at growing distance.
        Dissemination = 11, "dissemination";
        /// Straight through the boards of few ranks on one host, which is no schedule: `executor/in_host` has its story.
        Boards = 12, "boards";
    }
    told {
        /// NCCL's, whichever that is: of calls on device memory.
        Nccl = 13, "nccl";
        /// Kernels that read the memory of the other ranks' devices.
        Peers = 14, "peers";
    }
}

named! {
    /// A way of moving bytes between two members.
    "transport" TransportKind {
        /// Ranks that are threads of one process.
        Inproc = 0, "inproc";
        /// Shared memory within a host.
        Shm = 1, "shm";
        /// TCP sockets.
        Tcp = 2, "tcp";
        /// RDMA: InfiniBand, or RoCE on Ethernet.
        Rdma = 3, "rdma";
        /// Messages of a running MPI. In builds with the feature `mpi`.
        Mpi = 4, "mpi";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for &algorithm in Algorithm::ALL {
            assert_eq!(algorithm.name().parse(), Ok(algorithm));
            assert_eq!(Algorithm::from_code(algorithm as u8), Some(algorithm));
        }
        assert_eq!("two-shot".parse(), Ok(Algorithm::TwoShot));
        // What a call on device memory went by is told, and not asked for.
        assert_eq!(Algorithm::from_code(13).map(Algorithm::name), Some("nccl"));
        assert!("nccl".parse::<Algorithm>().is_err());
        assert!("spiral".parse::<Algorithm>().unwrap_err().contains("ring"));
        assert_eq!("shm".parse(), Ok(TransportKind::Shm));
    }
}
