//! Which engine has summed gradients, and whether another one gives other bits.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::nccl::preflight::{EXACT, Version};

/// How sums over ranks are made. A checkpoint keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SummedBy {
    /// In the order of ranks, over TCP.
    Tcp,
    /// In integers of 16 bits, in the network.
    Xdp,
    /// By NCCL of this version, in an order of its own.
    Nccl(u32),
}

impl SummedBy {
    /// Returns whether so many ranks may get other bits from the other one. The sum of two numbers has no
    /// order, unless they are rounded first.
    pub fn may_differ(self, other: Self, ranks: usize) -> bool {
        let rounds = self == Self::Xdp || other == Self::Xdp;
        self != other && (ranks > EXACT || rounds)
    }
}

impl fmt::Display for SummedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp => write!(f, "over TCP, in the order of ranks"),
            Self::Xdp => write!(f, "in the network, rounded to 16 bits"),
            Self::Nccl(version) => write!(f, "by NCCL {}, in its own order", Version(*version)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_ranks_have_the_same_bits_by_tcp_and_nccl_and_rounded_sums_are_others() {
        let [tcp, xdp, nccl] = [SummedBy::Tcp, SummedBy::Xdp, SummedBy::Nccl(22_809)];
        let newer = SummedBy::Nccl(22_903);
        for (one, other, of_two, of_three) in [
            (tcp, tcp, false, false),
            (nccl, nccl, false, false),
            (tcp, nccl, false, true),
            (nccl, newer, false, true),
            (tcp, xdp, true, true),
            (nccl, xdp, true, true),
        ] {
            for (one, other) in [(one, other), (other, one)] {
                let seen = [2, 3].map(|ranks| one.may_differ(other, ranks));
                assert_eq!(seen, [of_two, of_three], "{one}, {other}");
            }
        }
        assert_eq!(serde_json::to_string(&[tcp, nccl]).unwrap(), r#"["tcp",{"nccl":22809}]"#);
    }
}
