//! The entry of `match` that decides where several fit: the most specific one.
//!
//! Control groups of a host are named in several ways. By falling rank:
//!
//! | rank | entry |
//! |---|---|
//! | 3 | a name without wildcards: path of the group, container, pod, virtual machine |
//! | 2 | label or annotation of the pod, without wildcards |
//! | 1 | label or annotation of the pod, with wildcards in the value |
//! | 0 | a name with wildcards |
//!
//! Within a rank more given letters precede fewer, then more of them before the first wildcard. Of entries that are equal in all
//! this, that of the tenant that is first by name decides, and the check of a policy warns. Volumes, devices and initiators have
//! names with and without wildcards only.

use crate::access::Who;
use crate::tenant::Match;

/// Ranks of names with and without wildcards.
const NAME: [u8; 2] = [0, 3];
/// Ranks of labels and annotations with and without wildcards.
const MARK: [u8; 2] = [1, 2];
/// Ranks of names of initiators with and without wildcards: they precede addresses, which name initiators too.
const INITIATOR: [u8; 2] = [6, 7];

/// Specificity of an entry of `match`, for comparison with others that may fit the same thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Specificity {
    rank: u8,
    /// Number of letters that are given.
    given: usize,
    /// Number of them before the first wildcard.
    prefix: usize,
}

impl Specificity {
    /// Of a pattern, by its ranks with and without wildcards.
    fn of(pattern: &str, [open, exact]: [u8; 2]) -> Self {
        let given = pattern.bytes().filter(|letter| !b"*?".contains(letter)).count();
        let rank = if given == pattern.len() { exact } else { open };
        Self { rank, given, prefix: literal(pattern).len() }
    }
}

/// The letters of a pattern before its first wildcard.
pub(crate) fn literal(pattern: &str) -> &str {
    &pattern[..pattern.find(['*', '?']).unwrap_or(pattern.len())]
}

impl Match {
    /// Specificity of the entry: of several entries that fit, the one with the greatest value decides.
    pub fn specificity(&self) -> Specificity {
        let client = |rank: u8, given: usize| Specificity { rank, given, prefix: 0 };
        match self {
            Self::Cgroup(path) => Specificity::of(path.trim_matches('/'), NAME),
            Self::Volume(name) | Self::Container(name) | Self::Pod(name) | Self::Machine(name) | Self::Device(name) => {
                Specificity::of(name, NAME)
            }
            Self::PodLabel(mark) | Self::PodAnnotation(mark) => Specificity::of(mark, MARK),
            Self::Initiator(name) => Specificity::of(name, INITIATOR),
            Self::Client(Who::Unix) => client(2, 0),
            Self::Client(Who::Address(block)) => client(3, block.specificity() as usize),
            Self::Client(Who::Uid(_)) => client(4, 0),
            Self::Client(Who::Certificate(_)) => client(5, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(entry: &str) -> Specificity {
        entry.parse::<Match>().unwrap().specificity()
    }

    #[test]
    fn entries_of_all_kinds_have_one_order() {
        let falling = [
            "cgroup:/kubepods.slice/kubepods-pod77.slice/",
            "pod:shop/postgres-0",
            "container:db",
            "pod-label:app=postgres",
            "pod-annotation:a=b",
            "pod-label:app.kubernetes.io/name=*",
            "pod-label:app=db-*",
            "cgroup:kubepods.slice/kubepods-besteffort-pod*.slice",
            "pod:shop/postgres-*",
            "container:db-*",
            "machine:d*-b",
            "pod:*/*",
            "container:*",
        ];
        for pair in falling.windows(2) {
            assert!(of(pair[0]) > of(pair[1]), "{pair:?}");
        }
        assert_eq!(of("cgroup:/a/b*/"), of("cgroup:a/b*"), "slashes at both ends do not count");
        let names = ["initiator:a", "initiator:a*", "certificate:db.example.org", "uid:1"];
        let clients: Vec<&str> = names.into_iter().chain(["192.0.2.1", "192.0.2.0/24", "unix"]).collect();
        for pair in clients.windows(2) {
            assert!(of(pair[0]) > of(pair[1]), "{pair:?}");
        }
    }

    proptest! {
        /// A wildcard in place of a letter makes an entry of any kind less specific. Labels are between names with and without
        /// wildcards.
        #[test]
        fn a_wildcard_makes_an_entry_less_specific(
            kind in 0..5_usize, name in "[a-z]{2,12}", at in 0..12_usize, wildcard in "[*?]"
        ) {
            let before = ["container:", "cgroup:", "machine:", "pod:a/", "pod-label:a="][kind];
            let at = at % name.len();
            let open = format!("{before}{}{wildcard}{}", &name[..at], &name[at + 1..]);
            let exact = format!("{before}{name}");
            prop_assert!(of(&open) < of(&exact));
            let (label, open_label) = (of("pod-label:a=b"), of("pod-label:a=*"));
            if before != "pod-label:a=" {
                prop_assert!(of(&open) < open_label && label < of(&exact));
            }
        }
    }
}
