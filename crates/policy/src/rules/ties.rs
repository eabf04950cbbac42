//! Warnings about entries of two tenants that can fit the same thing although neither is more specific: then the order of the
//! tenants' names decides.

use std::collections::BTreeMap;

use super::Findings;
use crate::config::{Match, Tenant};
use crate::specificity::literal;

/// Largest number of equally specific entries with which an entry is compared, as there may be thousands.
const MOST_COMPARED: usize = 64;
/// Longest pattern that is compared letter by letter; a longer one counts as one that can fit whatever the other fits.
const LONGEST: usize = 512;
/// Number of digits of a container's ID, by which its control group may be called.
const ID_DIGITS: usize = 64;

/// An entry, after its tenant.
type Owned<'a> = (&'a str, &'a Match);

/// Warns about each entry that can fit what an equally specific entry of a tenant before it fits.
pub(super) fn warn(tenants: &BTreeMap<String, Tenant>, out: &mut Findings) {
    // Of one kind two equally specific patterns fit the same name only if they begin with the same letters.
    let mut alike: BTreeMap<_, Vec<Owned<'_>>> = BTreeMap::new();
    let mut groups: BTreeMap<_, Vec<Owned<'_>>> = BTreeMap::new();
    for (name, tenant) in tenants {
        for entry in &tenant.matches {
            let Some((kind, key, pattern)) = parts(entry) else { continue };
            let specificity = entry.specificity();
            let same = alike.entry((specificity, kind, key, literal(pattern))).or_default();
            let mut tie = first(same, name, entry);
            same.push((name.as_str(), entry));
            if entry.is_of_groups() {
                let others = groups.entry(specificity).or_default();
                tie = tie.or_else(|| first(others, name, entry));
                others.push((name.as_str(), entry));
            }
            let Some((owner, other)) = tie else { continue };
            let thing = if entry.is_of_groups() { "control group" } else { kind };
            out.warning(
                &["tenants", name, "match"],
                format!(
                    "{entry} of tenant {name:?} and {other} of tenant {owner:?} can fit the same {thing}, and neither is more specific: it belongs to {owner:?}, which is first by name; make one of the entries more specific"
                ),
            );
        }
    }
}

/// The first of `known` that is another tenant's and can fit what `entry` of `tenant` fits. An equal entry is an error already.
fn first<'a>(known: &[Owned<'a>], tenant: &str, entry: &Match) -> Option<Owned<'a>> {
    let mut known = known.iter().take(MOST_COMPARED);
    known.find(|(owner, other)| *owner != tenant && *other != entry && can_meet(other, entry)).copied()
}

/// Kind, key and pattern of an entry; `None` if it has no pattern. Only labels and annotations have a key.
fn parts(entry: &Match) -> Option<(&'static str, &str, &str)> {
    let (kind, text) = match entry {
        Match::Client(_) => return None,
        Match::Volume(name) => ("volume", name.as_str()),
        Match::Initiator(name) => ("initiator", name.as_str()),
        Match::Cgroup(path) => ("cgroup", path.trim_matches('/')),
        Match::Container(name) => ("container", name.as_str()),
        Match::Pod(name) => ("pod", name.as_str()),
        Match::PodLabel(mark) => ("pod-label", mark.as_str()),
        Match::PodAnnotation(mark) => ("pod-annotation", mark.as_str()),
        Match::Machine(name) => ("machine", name.as_str()),
        Match::Device(name) => ("device", name.as_str()),
    };
    let (key, pattern) = if entry.is_marked() { text.split_once('=')? } else { ("", text) };
    Some((kind, key, pattern))
}

/// True if one thing may fit both entries.
fn can_meet(one: &Match, other: &Match) -> bool {
    let Some(((kind, key, pattern), (other_kind, other_key, other_pattern))) = parts(one).zip(parts(other)) else {
        return false;
    };
    if kind != other_kind {
        // A pod has labels and annotations at once. What has a name is in a group with a path.
        return (one.is_marked() && other.is_marked()) || can_be_of(one, other) || can_be_of(other, one);
    }
    if key != other_key {
        return true;
    }
    match one {
        Match::Cgroup(_) | Match::Pod(_) => paths_meet(pattern, other_pattern),
        _ => meet(pattern, other_pattern),
    }
}

/// True if `group` names a group by its path, and what `thing` names may be in such a group.
fn can_be_of(group: &Match, thing: &Match) -> bool {
    let Match::Cgroup(path) = group else { return false };
    let last = path.trim_matches('/').rsplit('/').next().unwrap_or_default();
    match thing {
        Match::Container(_) => {
            let is_digits = last.chars().all(|letter| letter.is_ascii_hexdigit() || ['*', '?'].contains(&letter));
            meet(last, "*-*.scope") || (is_digits && meet(last, &"?".repeat(ID_DIGITS)))
        }
        Match::Pod(_) => meet(last, "*kubepods*-pod*.slice") || meet(last, "pod*"),
        Match::Machine(_) => meet(last, "machine-*.scope"),
        _ => false,
    }
}

/// True if one path fits both patterns, name by name.
fn paths_meet(one: &str, other: &str) -> bool {
    fn names(path: &str) -> Vec<&str> {
        path.split('/').filter(|name| !name.is_empty()).collect()
    }
    let (one, other) = (names(one), names(other));
    one.len() == other.len() && one.iter().zip(&other).all(|(one, other)| meet(one, other))
}

/// True if one name fits both patterns. O(letters of the one × letters of the other).
fn meet(one: &str, other: &str) -> bool {
    if one.len().max(other.len()) > LONGEST {
        return true;
    }
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    // Of each end of `other`: true if it meets the end of `one` behind the present letter.
    let mut behind = vec![false; other.len() + 1];
    for at in (0..=one.len()).rev() {
        let mut meets = vec![false; other.len() + 1];
        for place in (0..=other.len()).rev() {
            meets[place] = match (one.get(at), other.get(place)) {
                (None, None) => true,
                // The star stands for nothing, or for what the other pattern has here.
                (Some('*'), there) => behind[place] || (there.is_some() && meets[place + 1]),
                (here, Some('*')) => meets[place + 1] || (here.is_some() && behind[place]),
                (Some(here), Some(there)) => (here == there || *here == '?' || *there == '?') && behind[place + 1],
                _ => false,
            };
        }
        behind = meets;
    }
    behind[0]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tenant::fits;

    /// The warnings about two tenants with one entry each.
    fn warnings(one: &str, other: &str) -> Vec<String> {
        let tenant = |entry: &str| Tenant { matches: vec![entry.parse().unwrap()], ..Tenant::default() };
        let tenants = BTreeMap::from([("db".to_owned(), tenant(one)), ("web".to_owned(), tenant(other))]);
        let mut out = Findings(Vec::new());
        warn(&tenants, &mut out);
        out.0.into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn a_tie_names_both_tenants_and_the_one_that_is_first() {
        let found = warnings("pod-label:app=db", "pod-annotation:a=bcde");
        let [message] = &found[..] else { panic!("{found:?}") };
        let start = "pod-annotation:a=bcde of tenant \"web\" and pod-label:app=db of tenant \"db\" can fit the same";
        assert!(message.starts_with(start) && message.contains("belongs to \"db\""), "{message}");
    }

    #[test]
    fn entries_tie_if_they_are_equally_specific_and_can_fit_the_same() {
        for (one, other, ties) in [
            ("volume:a?*", "volume:a*?", true),
            ("volume:*a", "volume:*b", false),
            ("volume:db-*", "volume:db*", false),
            ("volume:*a", "device:*a", false),
            ("device:/dev/*a?", "device:/dev/?a*", true),
            ("cgroup:/a/b?*", "cgroup:a/b*?/", true),
            ("cgroup:a/?", "cgroup:a/b", false),
            ("cgroup:*/a", "cgroup:?a/", false),
            ("pod:*/a*", "pod:?/a?", true),
            ("pod:*/a*", "pod:?/b?", false),
            ("pod-label:app=db", "pod-label:app=qa", false),
            ("pod-label:app=db", "pod-label:env=qa", true),
            ("pod-label:app=db", "pod-label:tier=qa", false),
            ("pod-label:app=db", "container:app-db", false),
            // The kinds of groups that containers, pods and virtual machines have.
            ("cgroup:abc.scope/x-*", "container:aaaaaaaaaaaa*", true),
            ("cgroup:system.slice/*.service", "container:aaaaaaaaaaaaa*aaaaaaaa", false),
            ("cgroup:docker/a*", "container:aaaaaaaa*", true),
            ("cgroup:k/pod*", "pod:aa/bb*", true),
            ("cgroup:kk/?web", "pod:aaa?/bb", false),
            ("cgroup:m/machine-*", "machine:aaaaaaaaaa*", true),
            ("container:a*", "machine:a*", false),
            ("address:10.0.0.0/8", "address:10.0.0.0/9", false),
        ] {
            assert_eq!(warnings(one, other).len(), usize::from(ties), "{one} and {other}");
            assert_eq!(warnings(other, one).len(), usize::from(ties), "{other} and {one}");
        }
    }

    #[test]
    fn entries_of_one_tenant_do_not_tie() {
        let matches = ["volume:a?*", "volume:a*?"].map(|entry| entry.parse::<Match>().unwrap()).to_vec();
        let tenants = BTreeMap::from([("db".to_owned(), Tenant { matches, ..Tenant::default() })]);
        let mut out = Findings(Vec::new());
        warn(&tenants, &mut out);
        assert!(out.0.is_empty(), "{:?}", out.0);
    }

    proptest! {
        /// Two patterns meet if and only if a name fits both. A pattern of at most four letters and stars has no shortest name
        /// that is longer than both together.
        #[test]
        fn patterns_meet_if_a_name_fits_both(one in "[ab*?]{0,4}", other in "[ab*?]{0,4}") {
            // All names of up to eight letters.
            let mut names = vec![String::new()];
            for at in 0..255 {
                let longer = ["a", "b"].map(|letter| format!("{}{letter}", names[at]));
                names.extend(longer);
            }
            let fitting = names.iter().any(|name| fits(&one, name) && fits(&other, name));
            prop_assert_eq!(meet(&one, &other), fitting);
            prop_assert_eq!(meet(&one, &other), meet(&other, &one));
        }
    }
}
