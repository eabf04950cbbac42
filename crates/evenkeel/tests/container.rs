//! Tests of the `Containerfile`: the files that it copies exist, and its commands run here. No image is built.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const DATA: &str = "/var/lib/evenkeel";

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The instructions of the `Containerfile` in order, as name and arguments; continued lines are joined.
fn instructions() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(sources().join("Containerfile")).expect("the Containerfile");
    let text = text.replace("\\\n", " ");
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let pair = |line: &str| line.split_once(' ').map(|(name, rest)| (name.to_owned(), rest.trim().to_owned()));
    lines.map(|line| pair(line).expect("an instruction and its arguments")).collect()
}

/// The arguments of the last instruction `name` in the `Containerfile`; panics if there is none.
fn last(name: &str) -> String {
    let of_name = |(instruction, rest): (String, String)| (instruction == name).then_some(rest);
    instructions().into_iter().rev().find_map(of_name).unwrap_or_else(|| panic!("no {name}"))
}

/// Words of an instruction's JSON list, with the data folder `data` and free ports in place of the container's.
fn words(list: &str, data: &Path) -> Vec<String> {
    let list = &list[list.find('[').expect("a list")..];
    let words: Vec<String> = serde_json::from_str(list).expect("words");
    let here = |word: String| match word.as_str() {
        DATA => data.display().to_string(),
        // Which addresses are served may decide whether it starts at all.
        _ => word.replace(":10809", ":0").replace(":9809", ":0"),
    };
    words.into_iter().map(here).collect()
}

fn evenkeel(words: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.args(words);
    command
}

/// A running server and its data folder. When the value is dropped, the server is killed and the folder removed.
struct Server(Child, PathBuf);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = std::fs::remove_dir_all(&self.1);
    }
}

#[test]
fn it_copies_what_is_there_and_runs_without_privileges() {
    let ignored = std::fs::read_to_string(sources().join(".containerignore")).expect("the list of what is left out");
    for (name, rest) in instructions() {
        let known = [
            "CMD",
            "COPY",
            "ENTRYPOINT",
            "ENV",
            "EXPOSE",
            "FROM",
            "HEALTHCHECK",
            "RUN",
            "STOPSIGNAL",
            "USER",
            "VOLUME",
            "WORKDIR",
        ];
        assert!(known.contains(&name.as_str()), "{name} {rest}");
        if name == "COPY" && !rest.starts_with("--from=") {
            let words: Vec<&str> = rest.split_whitespace().collect();
            for source in &words[..words.len() - 1] {
                assert!(sources().join(source).exists(), "{source} is not there");
                assert!(!ignored.lines().any(|line| line == *source), "{source} is left out");
            }
        }
    }
    let user = last("USER");
    assert!(user.split(':').all(|id| id.parse::<u32>().is_ok_and(|id| id > 0)), "{user}");
    assert_eq!(last("VOLUME"), DATA);
    assert_eq!(last("ENTRYPOINT"), r#"["evenkeel"]"#);
}

#[test]
fn its_command_serves_and_its_health_check_tells() {
    let data = std::env::temp_dir().join(format!("evenkeel-container-{}", std::process::id()));
    std::fs::create_dir_all(&data).expect("a folder");
    let health = words(&last("HEALTHCHECK"), &data);
    assert_eq!(health[0], "evenkeel");
    let check = || -> Output { evenkeel(&health[1..]).output().expect("the health check") };
    assert!(!check().status.success(), "healthy without a server");
    let mut server = Server(evenkeel(&words(&last("CMD"), &data)).spawn().expect("the server"), data);
    let started = Instant::now();
    while !check().status.success() {
        let last = check();
        assert!(server.0.try_wait().expect("its state").is_none(), "the server has ended");
        assert!(started.elapsed() < PATIENCE, "{}", String::from_utf8_lossy(&last.stderr));
        std::thread::sleep(Duration::from_millis(50));
    }
    server.0.kill().expect("killed");
    server.0.wait().expect("ended");
    assert!(!check().status.success(), "healthy after the server's end");
}
