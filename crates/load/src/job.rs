//! The description of a job: its options on the command line and in a job file, and the job that follows from them.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use evenkeel_nbd::wire::Framing;
use evenkeel_policy::check::Errors;
use evenkeel_policy::document::Document;
use evenkeel_policy::units::{Bytes, Duration, UnitError};
use evenkeel_policy::uri::Target;
pub(crate) use evenkeel_policy::workload::{Burst, Pattern, SizeMix};
use serde::{Deserialize, Serialize};

use crate::certificates::Certificates;
use crate::content::{SECTOR, mix};
use crate::error::{At, Error, ensure};

/// Allowed range of shares of requests, in per cent.
const PERCENT: RangeInclusive<u64> = 0..=100;
/// Range of the queue depth of one connection.
const QUEUE_DEPTH: RangeInclusive<u64> = 1..=65_536;
/// Range of the number of connections of one job.
const CONNECTIONS: RangeInclusive<u64> = 1..=65_536;
/// Range of the number of threads of one job.
const THREADS: RangeInclusive<u64> = 1..=1024;
/// Range of the rate, in requests per second.
const RATE: RangeInclusive<u64> = 1..=100_000_000;
/// Allowed range of numbers of requests.
const COUNT: RangeInclusive<u64> = 1..=u64::MAX;
/// The longest run, a week, in nanoseconds. A longer one is surely a typing error; a week is far from any overflow.
const LONGEST_NS: u64 = 7 * 86_400 * 1_000_000_000;
/// Duration of the run, in seconds, if neither a duration nor a number of requests is given.
const DEFAULT_DURATION_S: u64 = 10;

/// A parser of numbers in a range.
fn within<T: TryFrom<u64>>(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| format!("use a whole number, {}", in_words(&range)))
    }
}

/// Parses the duration of a run.
fn length(text: &str) -> Result<Duration, String> {
    let length: Duration = text.parse().map_err(|error: UnitError| error.to_string())?;
    let fits = (1..=LONGEST_NS).contains(&length.as_nanos());
    if fits { Ok(length) } else { Err("use more than 0s, at most 7d".to_owned()) }
}

fn in_words(range: &RangeInclusive<u64>) -> String {
    match range.end() {
        &u64::MAX => format!("at least {}", range.start()),
        most => format!("{} to {most}", range.start()),
    }
}

/// The kind of a job's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// Reads only.
    Read,
    /// Writes only.
    Write,
    /// Reads and writes, in the share of --read-percent.
    Mix,
}

/// Arrivals of requests in an open loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Arrivals {
    /// Independent of each other (exponential gaps), as from many clients.
    Poisson,
    /// Evenly spaced.
    Constant,
}

/// The framing to ask the server for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Headers {
    /// Extended headers, or what the server has of them.
    Auto,
    /// Structured replies.
    Structured,
    /// Simple replies.
    Simple,
}

/// The settings of a job. On the command line for one job, or as the default of every job of a job file; there, keys
/// have these names with `_` for `-`.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct JobOptions {
    /// Name of the job; in a job file only.
    #[arg(skip)]
    name: Option<String>,
    /// Its export; in a job file only.
    #[arg(skip)]
    uri: Option<String>,
    /// PEM file with the authorities to trust, for a URI that is nbds://
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// PEM file with a certificate to show there, where the server asks for one
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// PEM file with its private key
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Kind of requests to send [default: read]
    #[arg(long, value_enum)]
    op: Option<Mode>,
    /// Share of reads in a mix, 0 to 100 [default: 70]
    #[arg(long, value_name = "PERCENT", value_parser = within::<u8>(PERCENT))]
    read_percent: Option<u8>,
    /// Share of requests that are trims instead of reads or writes, 0 to 100 [default: 0]
    #[arg(long, value_name = "PERCENT", value_parser = within::<u8>(PERCENT))]
    trim_percent: Option<u8>,
    /// Share of requests that write zeroes instead of reading or writing data, 0 to 100 [default: 0]
    #[arg(long, value_name = "PERCENT", value_parser = within::<u8>(PERCENT))]
    zero_percent: Option<u8>,
    /// Block size, or sizes with weights: 4k:80,64k:20 [default: 4k]
    #[arg(long, value_name = "SIZE[:WEIGHT,...]")]
    block_size: Option<SizeMix>,
    /// random, sequential or zipf:EXPONENT [default: random]
    #[arg(long)]
    pattern: Option<Pattern>,
    /// Requests in flight on each connection [default: 1]
    #[arg(long, value_name = "N", visible_alias = "qd", value_parser = within::<u32>(QUEUE_DEPTH))]
    queue_depth: Option<u32>,
    /// Connections [default: 1]
    #[arg(long, value_name = "N", value_parser = within::<u32>(CONNECTIONS))]
    connections: Option<u32>,
    /// Threads that share the connections [default: one for each connection, at most one for each core]
    #[arg(long, value_name = "N", value_parser = within::<u32>(THREADS))]
    threads: Option<u32>,
    /// Send at this rate, however late answers are; latency counts from the time at which a request was due
    #[arg(long, value_name = "IOPS", value_parser = within::<u64>(RATE))]
    rate: Option<u64>,
    /// Arrivals of requests at --rate [default: poisson]
    #[arg(long, value_enum)]
    arrivals: Option<Arrivals>,
    /// Send for the time ON, pause for the time OFF, and so on: 200ms:800ms
    #[arg(long, value_name = "ON:OFF")]
    burst: Option<Burst>,
    /// Time to send [default: 10s unless --requests is given]
    #[arg(long, value_name = "TIME", value_parser = length)]
    duration: Option<Duration>,
    /// Number of requests to send in all
    #[arg(long, value_name = "N", value_parser = within::<u64>(COUNT))]
    requests: Option<u64>,
    /// Time to send before the measurement [default: 0s]
    #[arg(long, value_name = "TIME")]
    warmup: Option<Duration>,
    /// Send every write with FUA: answered only when durable
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    fua: Option<bool>,
    /// Send a FLUSH after every N writes of a connection
    #[arg(long, value_name = "N", value_parser = within::<u64>(COUNT))]
    flush_every: Option<u64>,
    /// Start of the part of the volume to use [default: 0]
    #[arg(long, value_name = "SIZE")]
    offset: Option<Bytes>,
    /// Size of the part of the volume to use [default: to its end]
    #[arg(long, value_name = "SIZE")]
    size: Option<Bytes>,
    /// Write content that can be recognised, and check every read against what the block may hold
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    verify: Option<bool>,
    /// Before the run, write the whole part of the volume once
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    fill: Option<bool>,
    /// Framing to ask the server for [default: auto]
    #[arg(long, value_enum)]
    headers: Option<Headers>,
    /// Time for which the server may leave every request of a connection unanswered [default: 30s]
    #[arg(long, value_name = "TIME")]
    timeout: Option<Duration>,
    /// Time that a thread polls for the next answer before it sleeps, if answers come close together; 0 = never [default: 50us]
    #[arg(long, value_name = "TIME")]
    busy_poll: Option<Duration>,
}

/// A job with all its settings, which have been checked.
#[derive(Clone, Debug)]
pub struct Job {
    pub(crate) name: String,
    pub(crate) target: Target,
    /// The files for TLS; `None` without TLS.
    pub(crate) certificates: Option<Certificates>,
    pub(crate) mode: Mode,
    pub(crate) read_percent: u8,
    pub(crate) trim_percent: u8,
    pub(crate) zero_percent: u8,
    pub(crate) block_size: SizeMix,
    pub(crate) pattern: Pattern,
    pub(crate) queue_depth: u32,
    pub(crate) connections: u32,
    pub(crate) threads: u32,
    pub(crate) rate: Option<u64>,
    pub(crate) arrivals: Arrivals,
    pub(crate) burst: Option<Burst>,
    pub(crate) duration_ns: Option<u64>,
    pub(crate) requests: Option<u64>,
    pub(crate) warmup_ns: u64,
    pub(crate) fua: bool,
    pub(crate) flush_every: Option<u64>,
    pub(crate) offset: u64,
    pub(crate) size: Option<u64>,
    pub(crate) verify: bool,
    pub(crate) fill: bool,
    pub(crate) framing: Framing,
    pub(crate) timeout_ns: u64,
    pub(crate) busy_poll_ns: u64,
    pub(crate) seed: u64,
}

impl Job {
    /// The largest block, in bytes.
    pub(crate) fn largest_block(&self) -> u64 {
        self.block_size.largest()
    }

    /// The largest size that divides every request size, in bytes.
    pub(crate) fn grain(&self) -> u64 {
        self.block_size.0.iter().fold(0, |unit, &(size, _)| gcd(unit, size))
    }

    /// True if the job sends requests other than reads.
    pub(crate) fn changes_data(&self) -> bool {
        self.fill || self.mode != Mode::Read || self.trim_percent > 0 || self.zero_percent > 0
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl JobOptions {
    /// The keys whose values are out of range, each with its fault. Only job files need this check, as value parsers check the
    /// options of a command line.
    fn out_of_range(&self) -> Vec<(&'static str, String)> {
        let values = [
            ("read_percent", self.read_percent.map(u64::from), PERCENT),
            ("trim_percent", self.trim_percent.map(u64::from), PERCENT),
            ("zero_percent", self.zero_percent.map(u64::from), PERCENT),
            ("queue_depth", self.queue_depth.map(u64::from), QUEUE_DEPTH),
            ("connections", self.connections.map(u64::from), CONNECTIONS),
            ("threads", self.threads.map(u64::from), THREADS),
            ("rate", self.rate, RATE),
            ("requests", self.requests, COUNT),
            ("flush_every", self.flush_every, COUNT),
        ];
        let outside = values.into_iter().filter_map(|(key, value, range)| {
            let value = value.filter(|value| !range.contains(value))?;
            Some((key, format!("{value} is out of range; use {}", in_words(&range))))
        });
        outside.collect()
    }

    /// Checks that each option in `given` has an effect in the job that these options describe.
    ///
    /// # Errors
    /// A message with an option that has no effect, and the option that it needs.
    fn of_use(&self, given: &Self) -> Result<(), Error> {
        let mode = self.op.unwrap_or(Mode::Read);
        let some = |percent: Option<u8>| percent.is_some_and(|percent| percent > 0);
        let writes = mode != Mode::Read || some(self.trim_percent) || some(self.zero_percent);
        for (idle, option, needs) in [
            (given.arrivals.is_some() && self.rate.is_none(), "--arrivals", "--rate"),
            (given.read_percent.is_some() && mode != Mode::Mix, "--read-percent", "--op mix"),
            (given.fua == Some(true) && !writes, "--fua", "writes, by --op write or mix"),
            (given.flush_every.is_some() && !writes, "--flush-every", "writes, by --op write or mix"),
        ] {
            ensure!(Options, !idle, "{option} does nothing here: it needs {needs}");
        }
        Ok(())
    }

    /// Checks that the options for TLS in `given` have an effect on the connections to `target`.
    ///
    /// # Errors
    /// A message with an option that has no effect, and the URI that it needs.
    fn of_use_at(given: &Self, target: &Target) -> Result<(), Error> {
        for (file, option) in [(&given.ca, "--ca"), (&given.cert, "--cert"), (&given.key, "--key")] {
            let idle = file.is_some() && target.tls.is_none();
            ensure!(Options, !idle, "{option} does nothing here: it needs a URI with TLS, nbds:// or nbds+unix://");
        }
        Ok(())
    }

    /// The files for TLS with `target`; `None` if its URI does not ask for TLS.
    ///
    /// # Errors
    /// The option that is missing.
    fn certificates(&self, target: &Target) -> Result<Option<Certificates>, Error> {
        if target.tls.is_none() {
            return Ok(None);
        }
        let Some(ca) = self.ca.clone() else {
            let cure = "give --ca FILE, the certificate of the authority that signed the server's";
            return Err(Error::Options(format!("{target} asks for TLS, and no CA certificate is set; {cure}")));
        };
        ensure!(
            Options,
            self.cert.is_some() == self.key.is_some(),
            "--cert and --key belong together: give both, or neither"
        );
        Ok(Some(Certificates { ca, own: self.cert.clone().zip(self.key.clone()) }))
    }

    /// The job that these options describe. Without the option for threads, the job has at most `cores` threads.
    ///
    /// # Errors
    /// Options in conflict.
    pub(crate) fn job(self, name: &str, target: Target, seed: u64, cores: u32) -> Result<Job, Error> {
        let nanos = |duration: Option<Duration>| duration.map(|d| d.as_nanos());
        let connections = self.connections.unwrap_or(1);
        let certificates = self.certificates(&target)?;
        let duration_ns =
            nanos(self.duration).or_else(|| self.requests.is_none().then_some(DEFAULT_DURATION_S * 1_000_000_000));
        let job = Job {
            name: name.to_owned(),
            target,
            certificates,
            mode: self.op.unwrap_or(Mode::Read),
            read_percent: self.read_percent.unwrap_or(70),
            trim_percent: self.trim_percent.unwrap_or(0),
            zero_percent: self.zero_percent.unwrap_or(0),
            block_size: self.block_size.unwrap_or(SizeMix(vec![(4096, 1)])),
            pattern: self.pattern.unwrap_or(Pattern::Random),
            queue_depth: self.queue_depth.unwrap_or(1),
            connections,
            threads: self.threads.unwrap_or(cores).clamp(1, connections),
            rate: self.rate,
            arrivals: self.arrivals.unwrap_or(Arrivals::Poisson),
            burst: self.burst,
            duration_ns,
            requests: self.requests,
            warmup_ns: nanos(self.warmup).unwrap_or(0),
            fua: self.fua.unwrap_or(false),
            flush_every: self.flush_every,
            offset: self.offset.map_or(0, |offset| offset.0),
            size: self.size.map(|size| size.0),
            verify: self.verify.unwrap_or(false),
            fill: self.fill.unwrap_or(false),
            framing: match self.headers.unwrap_or(Headers::Auto) {
                Headers::Auto => Framing::Extended,
                Headers::Structured => Framing::Structured,
                Headers::Simple => Framing::Simple,
            },
            timeout_ns: nanos(self.timeout).unwrap_or(30_000_000_000),
            busy_poll_ns: nanos(self.busy_poll).unwrap_or(50_000),
            seed,
        };
        ensure!(
            Options,
            job.trim_percent + job.zero_percent <= 100,
            "--trim-percent and --zero-percent must be at most 100 together"
        );
        ensure!(
            Options,
            job.warmup_ns <= LONGEST_NS && job.duration_ns.is_none_or(|ns| (1..=LONGEST_NS).contains(&ns)),
            "--duration and --warmup must be at most 7d each, and --duration more than 0s"
        );
        ensure!(Options, job.timeout_ns > 0, "--timeout must be more than 0s");
        ensure!(Options, job.busy_poll_ns <= 1_000_000, "--busy-poll must be at most 1ms: no wake-up takes longer");
        if job.verify {
            ensure!(
                Options,
                job.block_size.0.iter().all(|(size, _)| size.is_multiple_of(SECTOR)),
                "--verify needs block sizes that are multiples of {SECTOR} bytes"
            );
            ensure!(
                Options,
                job.changes_data(),
                "--verify checks what this run has written: add --fill, or --op write or mix"
            );
        }
        Ok(job)
    }
}

/// A job file: the settings that all jobs share, and the jobs.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct JobFile {
    job: Vec<JobOptions>,
}

/// A job as it is listed: its name, its target and its options.
type Listed = (String, Target, JobOptions);

/// The jobs of a command line: those of the job file, or one job for `uri`.
///
/// # Errors
/// Neither a file nor `uri` is given, the file cannot be read or does not describe jobs, or options are in conflict.
pub fn jobs(file: Option<&Path>, uri: Option<&str>, options: &JobOptions, seed: u64) -> Result<Vec<Job>, Error> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let listed = match (file, uri) {
        (Some(path), uri) => {
            let name = path.display().to_string();
            let text = std::fs::read_to_string(path).at_with(|| format!("cannot read the job file {name}"))?;
            parse_file(&text, &name, uri, options)?
        }
        (None, Some(uri)) => {
            options.of_use(options)?;
            let target: Target = uri.parse()?;
            JobOptions::of_use_at(options, &target)?;
            vec![("load".to_owned(), target, options.clone())]
        }
        (None, None) => return Err(Error::Options("give a URI or --jobs FILE".into())),
    };
    let several = listed.len() > 1;
    let with_seed = |(index, (name, target, options)): (usize, Listed)| {
        // A single job uses the seed as it is, so that its content can be checked later.
        let seed = if several { mix(seed ^ index as u64) } else { seed };
        options.job(&name, target, seed, cores).at_with(|| match file {
            Some(path) => format!("in the job file {}: job `{name}`", path.display()),
            None => format!("job `{name}`"),
        })
    };
    listed.into_iter().enumerate().map(with_seed).collect()
}

/// A seed derived from the present time.
pub fn seed_from_time() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    // 32 bits are easier to type again.
    mix(now.as_nanos() as u64 ^ u64::from(std::process::id())) >> 32
}

/// The jobs in the text of a job file, in which every job must have a URI.
///
/// # Errors
/// All faults of a text that does not describe jobs, each with line and key.
pub fn parse_jobs(text: &str, seed: u64) -> Result<Vec<Job>, Error> {
    let listed = parse_file(text, "jobs", None, &JobOptions::default())?;
    let job = |(name, target, options): Listed| options.job(&name, target, seed, 1);
    listed.into_iter().map(job).collect()
}

/// The jobs in the text of the file `origin`. `defaults` and `uri` are the options and the URI of the command line, for jobs
/// without own ones.
///
/// # Errors
/// All faults in the text, each with line and key.
fn parse_file(text: &str, origin: &str, uri: Option<&str>, defaults: &JobOptions) -> Result<Vec<Listed>, Error> {
    let (document, mut problems) = Document::parse(text, origin);
    let (file, wrong) = document.read::<JobFile>();
    problems.extend(wrong);
    let file = file.unwrap_or_default();
    if problems.is_empty() && file.job.is_empty() {
        problems.push(document.complain(&[], "there is no [[job]]; add a table [[job]] with a uri"));
    }
    let written = table(defaults)?;
    let mut jobs: Vec<Listed> = Vec::new();
    for (index, own) in file.job.iter().enumerate() {
        let place = index.to_string();
        let mut complain = |key: &[&str], message: String| {
            problems.push(document.complain(&[&["job", place.as_str()], key].concat(), message));
        };
        own.out_of_range().into_iter().for_each(|(key, message)| complain(&[key], message));
        let name = own.name.clone().unwrap_or_else(|| format!("job{}", index + 1));
        if jobs.iter().any(|(other, ..)| *other == name) {
            complain(&["name"], format!("two jobs have the name `{name}`; give one another name"));
        }
        // What the job says, and where it says nothing, the defaults.
        let mut options = written.clone();
        options.extend(table(own)?);
        let options: JobOptions = options.try_into().at_with(|| format!("job `{name}`"))?;
        // A default need not be of use to every job.
        if let Err(error) = options.of_use(own) {
            complain(&[], error.to_string());
        }
        match own.uri.as_deref().or(uri).map(str::parse::<Target>) {
            Some(Ok(target)) => {
                if let Err(error) = JobOptions::of_use_at(own, &target) {
                    complain(&[], error.to_string());
                }
                jobs.push((name, target, options));
            }
            Some(Err(error)) => complain(&["uri"], error.to_string()),
            None => complain(&[], "the job has no uri, and none is on the command line; give either".to_owned()),
        }
    }
    if problems.is_empty() {
        return Ok(jobs);
    }
    // A fault in a file counts as one on the command line.
    Err(Error::Options(format!("the job file cannot be used\n{}", Errors(problems))))
}

/// The options that are set, as a TOML table.
fn table(options: &JobOptions) -> Result<toml::Table, Error> {
    toml::Table::try_from(options).map_err(|error| Error::Options(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target() -> Target {
        "nbd://localhost".parse().unwrap()
    }

    #[test]
    fn defaults_are_the_documented_ones() {
        let job = JobOptions::default().job("a", target(), 1, 2).unwrap();
        assert_eq!((job.mode, job.queue_depth, job.connections, job.threads), (Mode::Read, 1, 1, 1));
        assert_eq!((job.duration_ns, job.requests), (Some(10_000_000_000), None));
        let counted = JobOptions { requests: Some(5), connections: Some(8), ..JobOptions::default() };
        let job = counted.job("a", target(), 1, 2).unwrap();
        assert_eq!((job.duration_ns, job.requests, job.threads), (None, Some(5), 2));
    }

    #[test]
    fn contradictions_are_refused_with_a_cure() {
        let refused = |options: JobOptions| options.job("a", target(), 1, 2).unwrap_err().to_string();
        let verify = JobOptions { verify: Some(true), ..JobOptions::default() };
        assert!(refused(verify.clone()).contains("--fill"));
        let odd = JobOptions { block_size: Some(SizeMix(vec![(1000, 1)])), op: Some(Mode::Write), ..verify };
        assert!(refused(odd).contains("multiples of 512"));
        let much = JobOptions { trim_percent: Some(60), zero_percent: Some(60), ..JobOptions::default() };
        assert!(refused(much).contains("at most 100 together"));
    }

    #[test]
    fn a_job_file_gives_each_job_its_options_and_the_command_line_the_rest() {
        let text = r#"
            [[job]]
            name = "bulk"
            op = "write"
            block_size = "64k"
            queue_depth = 64

            [[job]]
            name = "light"
            uri = "nbd://other/vol"
            block_size = 4096
            burst = "200ms:800ms"
            duration = "2s"
            verify = false
        "#;
        let defaults = JobOptions { duration: Some("7s".parse().unwrap()), ..JobOptions::default() };
        let jobs = parse_file(text, "f.toml", Some("nbd://localhost"), &defaults).unwrap();
        assert_eq!(jobs.len(), 2);
        assert_eq!((jobs[0].0.as_str(), &jobs[0].1), ("bulk", &target()));
        let bulk = jobs[0].2.clone().job("bulk", target(), 1, 2).unwrap();
        assert_eq!((bulk.mode, bulk.queue_depth, bulk.largest_block()), (Mode::Write, 64, 65536));
        assert_eq!(bulk.duration_ns, Some(7_000_000_000));
        assert_eq!(jobs[1].1.export, "vol");
        assert_eq!(jobs[1].2.duration, Some("2s".parse().unwrap()));
        assert_eq!(jobs[1].2.burst, Some(Burst { on_ns: 200_000_000, off_ns: 800_000_000 }));
    }

    #[test]
    fn a_wrong_job_file_names_job_and_key() {
        for (text, words) in [
            ("", "no [[job]]"),
            ("job = []", "no [[job]]"),
            ("[[jobs]]", "f.toml:1:3: jobs: unknown key \"jobs\"; did you mean \"job\"?"),
            ("[[job]]\nname = \"a\"", ": job.0: the job has no uri"),
            (
                "[[job]]\nuri = \"nbd://h\"\nqueue_dept = 3\n[[job]]\nuri = \"nbd://h\"\nblock_size = \"4q\"",
                "f.toml:3:1: job.0.queue_dept: unknown key \"queue_dept\"; did you mean \"queue_depth\"?",
            ),
            (
                "[[job]]\nuri = \"nbd://h\"\nqueue_dept = 3\n[[job]]\nuri = \"nbd://h\"\nblock_size = \"4q\"",
                "f.toml:6:14: job.1.block_size: ",
            ),
            ("[[job]]\nuri = 5", "job.0.uri: 5 does not fit"),
            ("[[job]]\nuri = \"h\"", "job.0.uri: "),
            ("[[job]]\nname = \"a\"\nuri = \"nbd://h\"\narrivals = \"constant\"", "job.0: --arrivals does nothing"),
            ("[[job]]\nname = \"a\"\nuri = \"nbd://h\"\nread_percent = 50", "needs --op mix"),
            ("[[job]]\nname = \"a\"\nuri = \"nbd://h\"\nfua = true", "needs writes"),
            ("[[job]]\nname = \"a\"\nuri = \"nbd://h\"\nflush_every = 4", "needs writes"),
            ("[[job]]\nname=\"a\"\nuri=\"nbd://h\"\n[[job]]\nname=\"a\"\nuri=\"nbd://h\"", "two jobs"),
        ] {
            let error = parse_file(text, "f.toml", None, &JobOptions::default()).unwrap_err();
            assert!(error.is_of_options() && error.in_full().contains(words), "{text}: {}", error.in_full());
        }
    }

    #[test]
    fn the_values_of_a_job_file_have_the_ranges_of_the_options() {
        for (key, value) in [
            ("read_percent", "200"),
            ("trim_percent", "101"),
            ("zero_percent", "101"),
            ("queue_depth", "0"),
            ("queue_depth", "1000000"),
            ("connections", "0"),
            ("threads", "0"),
            ("rate", "0"),
            ("requests", "0"),
            ("flush_every", "0"),
        ] {
            let text = format!("[[job]]\nname = \"a\"\nuri = \"nbd://h\"\nop = \"mix\"\n{key} = {value}");
            let file = std::env::temp_dir().join(format!("evenkeel-job-{}-{key}-{value}.toml", std::process::id()));
            std::fs::write(&file, text).unwrap();
            let error = jobs(Some(&file), None, &JobOptions::default(), 1).map(drop).unwrap_err().in_full();
            std::fs::remove_file(&file).unwrap();
            let words = format!("{}:5:1: job.0.{key}: {value} is out of range; use ", file.display());
            assert!(error.contains(&words), "{error}");
        }
    }

    #[test]
    fn an_option_that_would_do_nothing_is_refused_but_not_as_a_default_of_other_jobs() {
        let options = JobOptions { arrivals: Some(Arrivals::Constant), ..JobOptions::default() };
        let error = jobs(None, Some("nbd://h"), &options, 1).map(drop).unwrap_err().to_string();
        assert_eq!(error, "--arrivals does nothing here: it needs --rate");
        let odd = JobOptions { trim_percent: Some(60), zero_percent: Some(60), ..JobOptions::default() };
        assert!(jobs(None, Some("nbd://h"), &odd, 1).is_err_and(|error| error.is_of_options()));
        assert!(jobs(None, Some("h"), &JobOptions::default(), 1).is_err_and(|error| !error.is_of_options()));
        let text = "[[job]]\nname = \"a\"\n[[job]]\nname = \"b\"\nrate = 9";
        assert_eq!(parse_file(text, "f.toml", Some("nbd://h"), &options).unwrap().len(), 2);
    }

    #[test]
    fn files_for_tls_belong_to_a_uri_with_tls() {
        let files = |text: &str| {
            let jobs = parse_file(text, "f.toml", Some("nbds://far"), &JobOptions::default())?;
            let (name, target, options) = jobs.into_iter().next().expect("one job");
            options.job(&name, target, 1, 1).map(|job| job.certificates)
        };
        let known = |own| Some(Certificates { ca: "a".into(), own });
        assert_eq!(files("[[job]]\nca = \"a\"").unwrap(), known(None));
        let own = Some(("c".into(), "k".into()));
        assert_eq!(files("[[job]]\nca = \"a\"\ncert = \"c\"\nkey = \"k\"").unwrap(), known(own));
        assert_eq!(files("[[job]]\nuri = \"nbd://near\"").unwrap(), None);
        for (text, words) in [
            ("[[job]]", "give --ca FILE"),
            ("[[job]]\nca = \"a\"\nkey = \"k\"", "--cert and --key belong together"),
            ("[[job]]\nuri = \"nbd://near\"\nca = \"a\"", "--ca does nothing here: it needs a URI with TLS"),
        ] {
            let error = files(text).unwrap_err();
            assert!(error.is_of_options() && error.in_full().contains(words), "{text}: {}", error.in_full());
        }
        let options = JobOptions { ca: Some("a".into()), ..JobOptions::default() };
        let error = jobs(None, Some("nbd://near"), &options, 1).map(drop).unwrap_err().to_string();
        assert!(error.starts_with("--ca does nothing here"), "{error}");
        // A default of the command line serves the jobs that need it.
        let text = "[[job]]\nname = \"a\"\n[[job]]\nname = \"b\"\nuri = \"nbds://far\"";
        let listed = parse_file(text, "f.toml", Some("nbd://near"), &options).unwrap();
        let found: Vec<_> = listed.iter().map(|(_, target, options)| options.certificates(target).unwrap()).collect();
        assert_eq!(found, [None, known(None)]);
    }

    #[test]
    fn a_size_mix_prints_as_it_is_written() {
        for text in ["4KiB", "4KiB:80,64KiB:20"] {
            assert_eq!(text.parse::<SizeMix>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn the_grain_divides_every_size() {
        let options = JobOptions { block_size: Some("12k,20k".parse().unwrap()), ..JobOptions::default() };
        assert_eq!(options.job("a", target(), 1, 1).unwrap().grain(), 4096);
    }
}
