use super::*;

/// A data folder that is deleted when the value is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("evenkeel-adopted-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("data")).expect("a folder");
        Self(path)
    }

    fn data(&self) -> PathBuf {
        self.0.join("data")
    }

    fn write(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, "content").expect("a file");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn find(adopted: &mut Adopted, path: &Path) -> Option<bool> {
    let metadata = fs::metadata(path).expect("the file exists");
    let name = Name::of(&adopted.data_dir, path, &metadata);
    adopted.find(&name)
}

fn adopt(adopted: &mut Adopted, path: &Path) {
    let metadata = fs::metadata(path).expect("the file exists");
    adopted.remember(Name::of(&adopted.data_dir, path, &metadata), false);
}

#[test]
fn a_file_is_known_by_any_name_until_another_takes_its_place() {
    let folder = Folder::new("known");
    let (foreign, other) = (folder.write("foreign.img"), folder.write("other.img"));
    let mut adopted = Adopted::load(&folder.data()).expect("no record yet");
    assert_eq!(find(&mut adopted, &foreign), None);
    adopt(&mut adopted, &foreign);
    adopted.save().expect("saved");

    let mut adopted = Adopted::load(&folder.data()).expect("the record");
    assert_eq!(find(&mut adopted, &foreign), Some(false));
    assert_eq!(find(&mut adopted, &other), None);
    std::os::unix::fs::symlink(&foreign, folder.0.join("link")).expect("a link");
    assert_eq!(find(&mut adopted, &folder.0.join("link")), Some(false));
    // Written to, it is the same file; renamed over, it is another.
    fs::write(&foreign, "something else").expect("written");
    assert_eq!(find(&mut adopted, &foreign), Some(false));
    fs::rename(&other, &foreign).expect("replaced");
    assert_eq!(find(&mut adopted, &foreign), None);
}

#[test]
fn a_file_is_the_servers_own_from_before_it_exists() {
    let folder = Folder::new("created");
    let (mine, failed) = (folder.data().join("mine.img"), folder.data().join("failed.img"));
    let mut adopted = Adopted::load(&folder.data()).expect("no record yet");
    adopted.expect([&mine, &failed].map(|path| Name::of_missing(&folder.data(), path)).into());
    adopted.save().expect("saved");
    // The process is killed after it has created the one, and before it has noted this.
    fs::write(&mine, "").expect("created");
    let mut adopted = Adopted::load(&folder.data()).expect("the record");
    assert_eq!(find(&mut adopted, &mine), Some(true));
    adopted.save().expect("saved");

    let mut adopted = Adopted::load(&folder.data()).expect("the record");
    assert_eq!(find(&mut adopted, &mine), Some(true));
    let other = folder.write("data/other.img");
    fs::rename(&other, &mine).expect("replaced");
    assert_eq!(find(&mut adopted, &mine), None, "what takes its place is foreign");
    // What was never created is not expected for ever.
    fs::write(&failed, "").expect("a file of another program");
    assert_eq!(find(&mut adopted, &failed), None);
}

#[test]
fn a_file_created_before_a_kill_is_missed_when_it_is_gone() {
    let folder = Folder::new("killed");
    let mine = folder.data().join("mine.img");
    let name = || Name::of_missing(&folder.data(), &mine);
    let mut adopted = Adopted::load(&folder.data()).expect("no record yet");
    adopted.expect(vec![name()]);
    adopted.save().expect("saved");
    // The process is killed after it has created the file; the next one serves it, and changes nothing else.
    fs::write(&mine, "").expect("created");
    Adopted::load(&folder.data()).expect("the record").save().expect("saved");
    // Its file system is not mounted the next time.
    fs::remove_file(&mine).expect("gone");
    let adopted = Adopted::load(&folder.data()).expect("the record");
    assert!(adopted.had(&name()), "an empty file would take the place of the volume");
}

#[test]
fn a_file_is_not_replaced_in_a_folder_that_cannot_be_synced() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new("unsynced");
    let path = folder.data().join("record");
    fs::write(&path, "old").expect("written");
    let allow = |mode| fs::set_permissions(folder.data(), fs::Permissions::from_mode(mode)).expect("set");
    allow(0o300);
    // Root may read it nevertheless.
    let can_sync = File::open(folder.data()).is_ok();
    let replaced = replace(&path, |_| Ok(b"new".to_vec())).is_ok();
    allow(0o700);
    let text = fs::read_to_string(&path).expect("it is there");
    assert_eq!((replaced, text.as_str()), (can_sync, if can_sync { "new" } else { "old" }));
}

#[test]
fn a_copy_of_the_folder_goes_by_paths() {
    let folder = Folder::new("copied");
    let inside = folder.write("data/disk.img");
    let mut adopted = Adopted::load(&folder.data()).expect("no record yet");
    adopt(&mut adopted, &inside);
    adopted.save().expect("saved");

    let copy = folder.0.join("copy");
    fs::create_dir(&copy).expect("a folder");
    for name in ["disk.img", RECORD] {
        fs::copy(folder.data().join(name), copy.join(name)).expect("copied");
    }
    let mut adopted = Adopted::load(&copy).expect("the record");
    assert_eq!(find(&mut adopted, &copy.join("disk.img")), Some(false));
    adopted.save().expect("saved");
    // From then on inodes count again.
    let mut adopted = Adopted::load(&copy).expect("the record");
    assert_eq!(find(&mut adopted, &copy.join("disk.img")), Some(false));
    fs::rename(folder.write("other.img"), copy.join("disk.img")).expect("replaced");
    assert_eq!(find(&mut adopted, &copy.join("disk.img")), None);
}

#[test]
fn a_damaged_record_is_an_error_with_the_cure() {
    let folder = Folder::new("damaged");
    fs::write(folder.data().join(RECORD), "id = 7\n[files").expect("written");
    let error = Adopted::load(&folder.data()).err().expect("it cannot be read").to_string();
    assert!(error.contains(RECORD) && error.contains("remove it"), "{error}");
}

#[test]
fn files_that_are_in_use_are_never_forgotten() {
    let folder = Folder::new("many");
    let used = folder.write("used.img");
    let mut adopted = Adopted::load(&folder.data()).expect("no record yet");
    for n in 0..MAX_FILES + 10 {
        adopted.files.insert(format!("{n}"), Known { id: Some("1".into()), created: false, used: false });
    }
    adopt(&mut adopted, &used);
    adopted.save().expect("saved");
    let mut adopted = Adopted::load(&folder.data()).expect("the record");
    assert_eq!(adopted.files.len(), MAX_FILES);
    assert_eq!(find(&mut adopted, &used), Some(false));
}

#[test]
fn a_record_of_the_next_format_is_kept_aside_and_begun_anew() {
    let folder = Folder::new("next");
    let known = folder.write("known.img");
    let mut adopted = Adopted::load(&folder.data()).expect("no record yet");
    adopt(&mut adopted, &known);
    adopted.save().expect("saved");
    let path = folder.data().join(RECORD);
    let next = fs::read_to_string(&path).expect("the record").replace("format = 1", "format = 2\nlease = true");
    assert!(next.contains("format = 2"), "{next}");
    fs::write(&path, &next).expect("written");

    // To look at it is not to begin anew.
    drop(Adopted::load(&folder.data()).expect("a record of no use"));
    assert_eq!(fs::read_to_string(&path).expect("where it was"), next);
    let mut adopted = Adopted::open(&folder.data()).expect("begun anew");
    assert_eq!(find(&mut adopted, &known), None, "every file is examined again");
    assert_eq!(fs::read_to_string(folder.data().join("files.toml.format-2")).expect("kept"), next);
    adopt(&mut adopted, &known);
    adopted.save().expect("saved");
    assert_eq!(find(&mut Adopted::load(&folder.data()).expect("the record"), &known), Some(false));
}
