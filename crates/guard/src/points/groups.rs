//! The control groups that a point limits on one device: finds them, takes them in, forgets those that are gone, and writes and
//! restores their rows of `io.max`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use evenkeel_policy::config::Match;

use super::{Errors, Tick};
use crate::actuator::io_max::{self, Change, IoMax, Limits};
use crate::config::LocalTenant;
use crate::discovery::groups::Names;
use crate::journal::Journal;
use crate::sensor::cgroup::GroupFile;
use crate::sensor::diskstats::DeviceNumber;

/// Major number of NBD devices.
const NBD: u32 = 43;

/// True if requests to this device count for totals on this host. Those to an NBD device pass another enforcement point, which is
/// nearer the disk: that of the server. So do those to a device above one, such as a volume of LVM: ask for all devices below.
pub(super) const fn counts_here(device: DeviceNumber) -> bool {
    device.major != NBD
}

/// A control group and its files.
#[derive(Debug)]
pub(super) struct Group<T> {
    pub(super) name: String,
    pub(super) folder: PathBuf,
    pub(super) stat: GroupFile,
    pub(super) row: IoMax,
    /// The limits that the agent has set for a latency target or a tenant's limit; `None` while the group is not throttled.
    pub(super) set: Option<Limits>,
    /// The point's own data of the group.
    pub(super) own: T,
}

/// The path at which systemd has the instances of a template, if `path` has them in `system.slice` itself.
fn in_slice_of_template(path: &str) -> Option<String> {
    let unit = path.trim_start_matches('/').strip_prefix("system.slice/").filter(|unit| !unit.contains('/'))?;
    let (template, _) = unit.split_once('@')?;
    // A dash would separate two levels of slices, and a backslash begins what stands for another character.
    let template = template.replace('\\', "\\x5c").replace('-', "\\x2d");
    Some(format!("system.slice/system-{template}.slice/{unit}"))
}

/// The control groups of one point.
#[derive(Debug, Default)]
pub(super) struct Groups<T> {
    /// The folder where cgroup v2 is mounted.
    pub(super) root: PathBuf,
    /// Groups in the order of their names.
    pub(super) list: Vec<Group<T>>,
    /// Rows of `io.max` that the previous policy set, by group, each with the `io.stat` of the group; a row stays here until
    /// this policy's search has found its group or not.
    pub(super) inherited: BTreeMap<String, (IoMax, Option<Limits>, GroupFile)>,
}

impl<T> Groups<T> {
    /// No group yet of those below `root`, where cgroup v2 is mounted.
    pub(super) fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), list: Vec::new(), inherited: BTreeMap::new() }
    }

    /// Takes over the limits of the previous policy's groups.
    pub(super) fn inherit(&mut self, old: Self) {
        let rows = old.list.into_iter().map(|group| (group.name, (group.row, group.set, group.stat)));
        self.inherited = rows.chain(old.inherited).collect();
    }

    /// Restores all limits at the end of the point.
    pub(super) fn end(self, journal: &mut Journal, errors: &mut Errors) {
        let inherited = self.inherited.into_values().map(|(row, ..)| row);
        for row in self.list.into_iter().map(|group| group.row).chain(inherited) {
            errors.take(row.restore(journal));
        }
    }

    /// Restores the limits of the previous policy for groups that have not been taken in.
    pub(super) fn restore_inherited(&mut self, tick: &mut Tick<'_>) {
        for (row, ..) in std::mem::take(&mut self.inherited).into_values() {
            tick.restore(|journal| row.restore(journal));
        }
    }

    /// As [`Self::restore_inherited`], for groups that this policy does not limit: those for which `is_its` is false.
    pub(super) fn restore_others(&mut self, tick: &mut Tick<'_>, is_its: impl Fn(&str) -> bool) {
        let mut kept = BTreeMap::new();
        for (group, of_group) in std::mem::take(&mut self.inherited) {
            let rows = if is_its(&group) { &mut kept } else { &mut self.inherited };
            rows.insert(group, of_group);
        }
        self.restore_inherited(tick);
        self.inherited = kept;
    }

    /// Place of the group with this name; if it is not known, the place where it belongs is the error.
    pub(super) fn place(&self, name: &str) -> Result<usize, usize> {
        self.list.binary_search_by(|known| known.name.as_str().cmp(name))
    }

    /// Names of the groups of `entry`, one of this tenant, that are not known yet; `None` after an error. `is_its`: true for a
    /// group of the tenant.
    pub(super) fn find(
        &self,
        names: &Names,
        (tenant, entry): (&str, &Match),
        is_its: impl Fn(&str) -> bool,
        notes: &mut Vec<String>,
        errors: &mut Errors,
    ) -> Option<Vec<String>> {
        let mut found = errors.take(names.find(&self.root, entry))?;
        if found.is_empty() {
            let shown = LocalTenant::shown(entry);
            let instances = in_slice_of_template(&shown).map(|path| format!(": systemd has instances in {path}"));
            notes.push(format!(
                "no group fits {shown:?} of tenant {tenant} now, and the agent goes on searching; start the service that has such a group, or correct match of the tenant{}",
                instances.unwrap_or_default()
            ));
        }
        // Of several tenants that name a group, the most specific decides.
        found.retain(|name| self.place(name).is_err() && is_its(name));
        Some(found)
    }

    /// The `io.stat` of group `name`; without it the reason goes to `notes` or to the errors.
    pub(super) fn counters(&self, name: &str, notes: &mut Vec<String>, errors: &mut Errors) -> Option<GroupFile> {
        let folder = self.root.join(name);
        let opened = GroupFile::open(folder.join("io.stat"));
        // It went between the search and this call, which is neither an error nor a missing controller.
        if opened.as_ref().is_err_and(|error| error.is_absent() || error.is_gone()) && !folder.exists() {
            return None;
        }
        if opened.as_ref().is_err_and(|error| error.is_absent()) {
            let parent = folder.parent().unwrap_or(&self.root).display();
            notes.push(format!(
                "the io controller is off for {name}; with systemd set IOAccounting=yes, otherwise write +io to {parent}/cgroup.subtree_control"
            ));
            return None;
        }
        // A group that is gone has neither file.
        if !folder.join("io.max").exists() && folder.join("io.stat").exists() {
            notes.push(format!(
                "{name} has no io.max, so that it cannot be limited; use a kernel with CONFIG_BLK_DEV_THROTTLING"
            ));
            return None;
        }
        errors.take(opened)
    }

    /// Adds a group, with its limits of the previous policy. A group that is made anew has none; the row of the one before stays
    /// for [`Self::restore_inherited`].
    pub(super) fn take_in(&mut self, name: String, stat: GroupFile, device: DeviceNumber, own: T) -> &mut Group<T> {
        let folder = self.root.join(&name);
        let new = || (IoMax::new(&folder, device), None);
        let is_same = self.inherited.get(&name).is_some_and(|(.., before)| before.is_same(&stat));
        let inherited = if is_same { self.inherited.remove(&name) } else { None };
        let (row, set) = inherited.map_or_else(new, |(row, set, _)| (row, set));
        let at = self.list.partition_point(|known| known.name < name);
        self.list.insert(at, Group { name, folder, stat, row, set, own });
        &mut self.list[at]
    }

    /// Forgets the groups at these places, which are in order, and restores their limits. Of a group that is gone nothing is left
    /// to restore, and the journal forgets it.
    pub(super) fn leave(
        &mut self,
        places: impl DoubleEndedIterator<Item = usize>,
        tick: &mut Tick<'_>,
        mut forget: impl FnMut(T),
    ) {
        for at in places.rev() {
            let group = self.list.remove(at);
            forget(group.own);
            tick.restore(|journal| group.row.restore(journal));
        }
    }

    /// Sets the rows of the groups at these places, which are in order, to the limits beside them: those that differ are written.
    /// Returns the places with the changes; `None`: an error.
    pub(super) fn write(&mut self, wanted: &[(usize, Limits)], tick: &mut Tick<'_>) -> Vec<(usize, Option<Change>)> {
        let Some(journal) = tick.journal.as_deref_mut() else { return Vec::new() };
        let mut left = wanted.iter().peekable();
        let rows = self.list.iter_mut().enumerate().filter_map(|(at, group)| {
            let (_, limits) = left.next_if(|(place, _)| *place == at)?;
            Some((&mut group.row, *limits))
        });
        let mut rows: Vec<(&mut IoMax, Limits)> = rows.collect();
        let Some(results) = tick.errors.take(io_max::set_all(journal, &mut rows)) else { return Vec::new() };
        let changes = wanted.iter().zip(results);
        changes.map(|((at, _), result)| (*at, tick.errors.take(result))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::folder;

    #[test]
    fn instances_of_a_template_are_in_a_slice_of_their_own() {
        for (path, found) in [
            ("system.slice/postgresql@*.service", Some("system.slice/system-postgresql.slice/postgresql@*.service")),
            ("/system.slice/a-b@1.service", Some("system.slice/system-a\\x2db.slice/a-b@1.service")),
            ("system.slice/system-postgresql.slice/postgresql@*.service", None),
            ("system.slice/a\\x2db@1.service", Some("system.slice/system-a\\x5cx2db.slice/a\\x2db@1.service")),
            ("system.slice/cron.service", None),
            ("user.slice/user@1000.service", None),
        ] {
            assert_eq!(in_slice_of_template(path).as_deref(), found, "{path}");
        }
    }

    #[test]
    fn a_group_without_io_max_is_left_out_with_the_cure() {
        let root = folder("points-groups-no-io-max");
        root.file("slice/db/io.stat", "");
        let groups = Groups::<()>::new(&root);
        let (mut notes, mut errors) = (Vec::new(), Errors::default());
        assert!(groups.counters("slice/db", &mut notes, &mut errors).is_none());
        assert!(notes.len() == 1 && notes[0].contains("CONFIG_BLK_DEV_THROTTLING"), "{notes:?}");
        std::fs::write(root.join("slice/db/io.max"), "").unwrap();
        assert!(groups.counters("slice/db", &mut notes, &mut errors).is_some());
        assert!(notes.len() == 1 && errors.0.is_empty(), "{notes:?} {errors:?}");
    }

    #[test]
    fn a_group_that_goes_during_a_search_lacks_no_controller() {
        let root = folder("points-groups-gone");
        root.dir("slice/off");
        let groups = Groups::<()>::new(&root);
        let (mut notes, mut errors) = (Vec::new(), Errors::default());
        assert!(groups.counters("slice/gone", &mut notes, &mut errors).is_none());
        assert!(notes.is_empty() && errors.0.is_empty(), "{notes:?} {errors:?}");
        assert!(groups.counters("slice/off", &mut notes, &mut errors).is_none());
        assert!(notes.len() == 1 && notes[0].contains("the io controller is off for slice/off"), "{notes:?}");
    }

    #[test]
    fn a_pattern_of_instances_in_the_wrong_slice_is_named_with_the_right_one() {
        let root = folder("points-groups-template");
        let (groups, names) = (Groups::<()>::new(&root), Names::default());
        let (mut notes, mut errors) = (Vec::new(), Errors::default());
        for unit in ["db@*.service", "db.service"] {
            let entry = Match::Cgroup(format!("system.slice/{unit}"));
            let found = groups.find(&names, ("db", &entry), |_| true, &mut notes, &mut errors);
            assert_eq!(found, Some(Vec::new()), "{unit}");
        }
        let named: Vec<bool> = notes.iter().map(|note| note.contains("system.slice/system-db.slice/db@*")).collect();
        assert_eq!(named, [true, false], "{notes:?}");
    }
}
