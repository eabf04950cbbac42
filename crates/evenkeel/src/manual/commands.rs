//! Examples, files, exit statuses and related pages of each command, for `--help` and for the manual pages.

/// A command line, a file or an exit status as first text, and its meaning as second text.
pub(super) type Pair = (&'static str, &'static str);

/// The parts of a command's manual page that do not come from the command-line parser.
pub(super) struct Facts {
    /// The command's words without `evenkeel`, such as `tenant set`; empty for the program itself.
    pub(super) command: &'static str,
    /// Command lines with their effects. If empty, the first example of each subcommand is shown.
    pub(super) examples: &'static [Pair],
    pub(super) files: &'static [Pair],
    pub(super) status: &'static [Pair],
    /// Related pages of `man`, such as `evenkeel-check(1)`.
    pub(super) see: &'static [&'static str],
    /// Related pages of the Markdown manual, as paths relative to its folder.
    pub(super) pages: &'static [&'static str],
}

impl Facts {
    const fn of(command: &'static str) -> Self {
        Self { command, examples: &[], files: &[], status: DONE, see: &[], pages: &[] }
    }

    /// The facts of a command that asks a running server.
    const fn control(command: &'static str) -> Self {
        Self { files: CONTROL, ..Self::of(command) }
    }

    /// The facts of a command that reads a recording.
    const fn traced(command: &'static str) -> Self {
        Self { files: TRACED, ..Self::of(command) }
    }

    const fn examples(self, examples: &'static [Pair]) -> Self {
        Self { examples, ..self }
    }

    const fn files(self, files: &'static [Pair]) -> Self {
        Self { files, ..self }
    }

    const fn status(self, status: &'static [Pair]) -> Self {
        Self { status, ..self }
    }

    const fn see(self, see: &'static [&'static str], pages: &'static [&'static str]) -> Self {
        Self { see, pages, ..self }
    }
}

/// The facts of the command with the words `command`; facts without examples for an unknown command.
pub(super) fn of(command: &str) -> &'static Facts {
    const NONE: &Facts = &Facts::of("");
    COMMANDS.iter().find(|facts| facts.command == command).unwrap_or(NONE)
}

const USAGE: Pair = ("2", "The command line cannot be used.");
const DONE: &[Pair] =
    &[("0", "The command did its work."), ("1", "It failed: standard error has the reason and the cure."), USAGE];
const SERVED: &[Pair] = &[
    ("0", "The server stopped gracefully: requests in flight were answered, and all data is durable."),
    ("1", "The server could not start, or could not make all data durable at its stop."),
    USAGE,
];
const GUARDED: &[Pair] = &[
    ("0", "The agent stopped, and restored every setting that it had changed."),
    ("1", "The agent could not start, or could not restore a setting: evenkeel guard reset tries again."),
    USAGE,
    ("78", "The configuration cannot be used, or has nothing to enforce: the service does not start again."),
];
const LOADED: &[Pair] = &[
    ("0", "The server answered every request."),
    ("1", "The server cannot be reached or was lost, a request failed, content was wrong, or a durable write is lost."),
    USAGE,
];
const HEALTH: &[Pair] = &[
    ("0", "There is no trouble."),
    ("1", "The worst trouble is a warning."),
    ("2", "A trouble is critical; also: the command line cannot be used."),
    ("3", "Neither a server nor an agent answers."),
];
const CHECKED: &[Pair] = &[
    ("0", "The file can be used."),
    (
        "1",
        "The file cannot be used; with --strict also: there is a warning, or a setting is not enforced on this host.",
    ),
    USAGE,
];
const SIMULATED: &[Pair] = &[
    ("0", "Every bound of the scenario is met."),
    ("1", "A bound is missed."),
    ("2", "The scenario or the command line cannot be used."),
    INTERRUPTED,
];
const REPRODUCED: &[Pair] =
    &[("0", "The experiment ran to its end, whatever its figures are."), ("1", "It failed."), USAGE, INTERRUPTED];
const INTERRUPTED: Pair = ("130", "An interrupt ended the runs.");
const SHOWN: &[Pair] = &[DONE[0], DONE[1], USAGE, INTERRUPTED];
const FOUND: &[Pair] = &[
    ("0", "The manual has the command, the page or the term."),
    ("1", "It has none of that name; the message suggests similar ones."),
    USAGE,
];

const SETTINGS: Pair = ("/etc/evenkeel/evenkeel.toml", "settings of the package's server");
const AGENT_SETTINGS: Pair = ("/etc/evenkeel/guard.toml", "settings of the package's agent");
const EXAMPLE: Pair = ("/usr/share/doc/evenkeel/examples/evenkeel.toml", "every key of the server with its default");
const AGENT_EXAMPLE: Pair = ("/usr/share/doc/evenkeel/examples/guard.toml", "every key of the agent with its default");
const SCENARIOS: Pair = ("/usr/share/doc/evenkeel/examples/scenarios", "scenarios, and models of devices");
const MANUAL: Pair = ("/usr/share/doc/evenkeel", "the manual's pages");
const JOURNAL: Pair = ("/run/evenkeel/guard.journal", "the settings that the agent restores");
const CONTROL: &[Pair] = &[
    (
        "./evenkeel-data/control.sock",
        "the server's control socket, unless --control, --data-dir or --config names another",
    ),
    SETTINGS,
];
const DATA: &[Pair] = &[
    SETTINGS,
    ("./evenkeel-data", "data folder without --data-dir and server.data_dir; the package's is /var/lib/evenkeel"),
    ("DATA_DIR/NAME.img", "content of the volume NAME, unless it has a path of its own"),
    ("DATA_DIR/volumes.toml", "volumes that evenkeel volume create has made"),
    ("DATA_DIR/files.toml", "files known to hold volumes"),
    ("DATA_DIR/server.lock", "lock of the running server; another one with this folder does not start"),
    ("DATA_DIR/history", "figures and events of the last month, for evenkeel history"),
    ("DATA_DIR/flight", "requests of the last minutes, for evenkeel record --last"),
    ("DATA_DIR/nbd.sock, DATA_DIR/control.sock", "sockets for NBD and for changes"),
];

const RECORDED: &[Pair] = &[
    ("DATA_DIR/history", "the history of a server"),
    ("/var/lib/evenkeel-guard/history", "the history of the package's agent"),
];

const TRACED: &[Pair] = &[("FILE", "a recording, or a trace of another program, whose format is recognised")];

const TOML: &str = "evenkeel.toml(5)";

pub(super) const COMMANDS: &[Facts] = &[
    Facts::of("")
        .examples(&[
            ("evenkeel serve", "serve a 1 GiB volume; prints lines for a second terminal"),
            ("evenkeel demo bufferbloat", "see in about a minute the purpose of admission control"),
            ("evenkeel config example > my.toml", "every setting, explained"),
            ("evenkeel serve --config my.toml", "your own pools, tenants and volumes"),
            ("evenkeel help backpressure", "find a term, key or metric in the manual"),
        ])
        .files(&[SETTINGS, AGENT_SETTINGS, MANUAL])
        .see(&[TOML], &["README.md", "glossary.md", "guide/install.md", "guide/troubleshooting.md"]),
    Facts::of("serve")
        .examples(&[
            ("evenkeel serve", "serve disk0, 1 GiB, at 127.0.0.1:10809"),
            ("evenkeel serve --config /etc/evenkeel/evenkeel.toml", "serve the pools, tenants and volumes of a file"),
            ("evenkeel serve --listen 192.0.2.10:10809 --status off", "serve another network, without a dashboard"),
        ])
        .files(DATA)
        .status(SERVED)
        .see(
            &[TOML, "evenkeel-check(1)", "evenkeel-state(1)", "evenkeel-top(1)", "evenkeel-volume(1)"],
            &["guide/serve.md", "guide/tutorial-server.md", "guide/tls.md", "guide/security.md"],
        ),
    Facts::of("load")
        .examples(&[
            ("evenkeel load nbd://127.0.0.1/disk0", "read 4 KiB at random for 10 s, one request at a time"),
            (
                "evenkeel load nbd://127.0.0.1/disk0 --op mix --queue-depth 32 --connections 4",
                "70 % reads, 128 in flight",
            ),
            (
                "evenkeel load nbd://127.0.0.1/disk0 --op mix --fill --verify --size 256M",
                "check the content of every read",
            ),
            ("evenkeel load --jobs jobs.toml --json", "several clients at once, the result as JSON"),
        ])
        .files(&[("FILE of --jobs", "tables [[job]] with the options as keys")])
        .status(LOADED)
        .see(&["evenkeel-serve(1)", "evenkeel-sim(1)"], &["guide/load.md"]),
    Facts::of("demo").files(&[MANUAL]).see(&["evenkeel-reproduce(1)"], &["guide/demo.md"]),
    Facts::of("demo bufferbloat")
        .examples(&[
            ("evenkeel demo bufferbloat", "measure all settings of admission control, in about a minute"),
            ("evenkeel demo bufferbloat --settings none,elastic --html page.html", "compare two, with a plot"),
        ])
        .files(&[("FILE of --html, --svg", "the plots")])
        .status(SHOWN)
        .see(&["evenkeel-reproduce(1)", "evenkeel-sim(1)"], &["guide/demo.md", "algorithms/elastic.md"]),
    Facts::of("demo neighbour")
        .examples(&[
            ("evenkeel demo neighbour", "see in under a minute a noisy neighbour, and the agent against it"),
            ("evenkeel demo neighbour --file /srv/scratch --html page.html", "on the disk of /srv, with a plot"),
        ])
        .files(&[("/var/tmp/evenkeel-demo-PID", "the scratch file"), ("FILE of --html", "the plot")])
        .status(SHOWN)
        .see(&["evenkeel-guard(1)"], &["guide/demo.md", "guide/guard.md"]),
    Facts::of("sim")
        .examples(&[
            ("evenkeel sim scenarios/noisy-neighbour.toml", "run a scenario"),
            (
                "evenkeel sim scenarios/bufferbloat.toml --sweep pool.tuning.admission=none,elastic",
                "compare two settings",
            ),
            ("evenkeel sim scenarios/reservation.toml --seeds 10 --report page.html", "means of ten seeds, with plots"),
        ])
        .files(&[SCENARIOS])
        .status(SIMULATED)
        .see(&["evenkeel-reproduce(1)"], &["guide/sim.md", "guide/workloads.md", "algorithms/simulator.md"]),
    Facts::of("reproduce")
        .examples(&[
            ("evenkeel reproduce bufferbloat --quick", "the admission control of the first paper, in short runs"),
            ("evenkeel reproduce saat --report page.html", "throughput guarantees on a cached device, with plots"),
            ("evenkeel reproduce all --quick --json", "every experiment, one document of JSON per line"),
        ])
        .files(&[("FILE.html of --report", "the plots")])
        .status(REPRODUCED)
        .see(&["evenkeel-sim(1)"], &["guide/reproduce.md"]),
    Facts::of("guard")
        .files(&[AGENT_SETTINGS, AGENT_EXAMPLE, JOURNAL])
        .see(&[TOML, "evenkeel-check(1)", "evenkeel-top(1)"], &["guide/guard.md", "guide/ceph.md"]),
    Facts::of("guard run")
        .examples(&[
            (
                "evenkeel guard run --config /etc/evenkeel/guard.toml --dry-run",
                "measure and decide, throttle no client",
            ),
            ("evenkeel guard run --config /etc/evenkeel/guard.toml", "enforce the policy until it is stopped"),
        ])
        .files(&[AGENT_SETTINGS, JOURNAL])
        .status(GUARDED)
        .see(
            &[
                TOML,
                "evenkeel-check(1)",
                "evenkeel-guard-discover(1)",
                "evenkeel-guard-status(1)",
                "evenkeel-guard-why(1)",
            ],
            &["guide/guard.md", "guide/tutorial-iscsi.md"],
        ),
    Facts::of("guard discover")
        .examples(&[
            ("evenkeel guard discover", "show clients, volumes, devices and pools of this host"),
            ("evenkeel guard discover --config /etc/evenkeel/guard.toml --json", "with the pools of a file, as JSON"),
        ])
        .files(&[AGENT_SETTINGS])
        .see(&["evenkeel-guard-run(1)", "evenkeel-check(1)"], &["guide/guard.md"]),
    Facts::of("guard config").files(&[AGENT_EXAMPLE]).see(&[TOML], &["guide/guard.md"]),
    Facts::of("guard config example")
        .examples(&[("evenkeel guard config example > guard.toml", "every key of the agent, explained")])
        .files(&[AGENT_EXAMPLE])
        .see(&[TOML, "evenkeel-check(1)"], &["guide/guard.md"]),
    Facts::of("guard status")
        .examples(&[
            ("evenkeel guard status", "show the agent of this host"),
            ("evenkeel guard status --status 192.0.2.10:9810 --json", "the whole record of another host's agent"),
        ])
        .files(&[AGENT_SETTINGS])
        .see(&["evenkeel-guard-why(1)", "evenkeel-top(1)"], &["guide/guard.md", "reference/api.md"]),
    Facts::of("guard why")
        .examples(&[
            ("evenkeel guard why", "the ten newest decisions, with their reasons"),
            ("evenkeel guard why vg1 -n 100", "the hundred newest decisions of the pool vg1"),
            ("evenkeel guard why vg1 --at 02:40", "the ten newest decisions until 02:40 of last night"),
        ])
        .files(&[AGENT_SETTINGS])
        .see(&["evenkeel-guard-status(1)"], &["guide/guard.md", "reference/api.md"]),
    Facts::of("guard delay")
        .examples(&[(
            "evenkeel guard delay --client 192.0.2.21 --device eth0 --delay 5ms --for 10s",
            "delay every packet to a client by 5 ms",
        )])
        .files(&[JOURNAL])
        .see(&["evenkeel-guard-reset(1)"], &["algorithms/packet-delay.md"]),
    Facts::of("guard reset")
        .examples(&[("evenkeel guard reset", "restore the settings of a killed agent")])
        .files(&[JOURNAL])
        .see(&["evenkeel-guard-run(1)"], &["guide/guard.md"]),
    Facts::of("check")
        .examples(&[
            ("evenkeel check evenkeel.toml", "every error, and what this host enforces of the file"),
            ("evenkeel check --strict --json /etc/evenkeel/guard.toml", "for scripts: warnings fail, too"),
            ("evenkeel check", "show the abilities of this host's kernel"),
        ])
        .files(&[SETTINGS, AGENT_SETTINGS])
        .status(CHECKED)
        .see(&[TOML, "evenkeel-serve(1)", "evenkeel-guard-run(1)"], &["reference/check.md", "reference/config.md"]),
    Facts::of("config").files(&[EXAMPLE]).see(&[TOML, "evenkeel-check(1)"], &["reference/config.md"]),
    Facts::of("config example")
        .examples(&[("evenkeel config example > evenkeel.toml", "every key with its default, explained")])
        .files(&[EXAMPLE])
        .see(&[TOML, "evenkeel-check(1)", "evenkeel-guard-config-example(1)"], &["reference/config.md"]),
    Facts::of("config schema")
        .examples(&[("evenkeel config schema > evenkeel.schema.json", "a schema for an editor that completes keys")])
        .files(&[EXAMPLE])
        .see(&[TOML], &["reference/config.md"]),
    Facts::control("top")
        .examples(&[
            ("evenkeel top", "the server of ./evenkeel-data, else the server or agent of this host"),
            ("evenkeel top --status 127.0.0.1:9810", "the agent (evenkeel guard) of this host"),
            ("evenkeel top --view tenants --sort latency", "the slowest tenants first"),
            ("evenkeel top --at 02:40", "the figures at twenty to three"),
            ("evenkeel top --status 192.0.2.1:9809 --status 192.0.2.2:9809", "two servers, a section each"),
            (
                "evenkeel top --once --view tenants --filter backup",
                "a line for each tenant called backup, for a script",
            ),
            ("evenkeel top --json --interval 10s", "a line of JSON every ten seconds, for programs"),
            ("ssh -L 9809:127.0.0.1:9809 storage1 & evenkeel top --status 127.0.0.1:9809", "a server through a tunnel"),
            (
                "evenkeel top --status https://storage1:9809 --ca ca-cert.pem --cert me-cert.pem --key me-key.pem",
                "a server with TLS",
            ),
        ])
        .see(&["evenkeel-state(1)", "evenkeel-guard-status(1)"], &["guide/top.md", "guide/dashboard.md"]),
    Facts::control("health")
        .examples(&[
            ("evenkeel health", "the server of ./evenkeel-data, else the server or agent of this host"),
            ("evenkeel health --status 192.0.2.10:9809", "a server on another host, for a monitoring system"),
        ])
        .status(HEALTH)
        .see(&["evenkeel-top(1)", "evenkeel-state(1)"], &["guide/monitoring.md"]),
    Facts::of("history")
        .examples(&[
            ("evenkeel history --from 02:40 --to 02:50", "ten minutes of the last night, whole pools, with all events"),
            ("evenkeel history --from -2h --tenant shop --json", "a tenant in the last two hours, as JSON"),
            ("evenkeel history --dir /var/lib/evenkeel/history", "the last ten minutes, even if no server runs"),
        ])
        .files(RECORDED)
        .see(&["evenkeel-guard-why(1)", "evenkeel-top(1)"], &["guide/monitoring.md", "reference/api.md"]),
    Facts::of("why")
        .examples(&[
            ("evenkeel why shop", "the reasons why tenant shop gets what it gets, now"),
            ("evenkeel why shop --at 02:40", "the reasons at 02:40 of the last night"),
            ("evenkeel why --dir /var/lib/evenkeel/history", "all pools and tenants, even if no server runs"),
        ])
        .files(RECORDED)
        .see(&["evenkeel-history(1)", "evenkeel-guard-why(1)", "evenkeel-top(1)"], &["guide/monitoring.md"]),
    Facts::of("suggest")
        .examples(&[
            ("evenkeel suggest --device /dev/vdb", "measure a device for a minute; asks if it is in use"),
            ("evenkeel suggest --dir /var/lib/evenkeel/history --for 1h", "settings for the load of the last hour"),
        ])
        .files(RECORDED)
        .see(&[TOML, "evenkeel-check(1)", "evenkeel-history(1)"], &["reference/config.md", "guide/serve.md"]),
    Facts::control("record")
        .examples(&[
            ("evenkeel record --for 10m night.rec", "ten minutes of all pools; an interrupt ends it early"),
            ("evenkeel record --last 5m incident.rec", "the last five minutes, if record in [server] keeps them"),
            ("evenkeel record --anonymise my.key shared.rec", "a minute with names and offsets scrambled"),
            ("evenkeel record --device /dev/nvme0n1 host.rec", "a minute of a disk, by control group; as root"),
            ("evenkeel record --pool vg1 --status 127.0.0.1:9810 vg1.rec", "a pool of the agent of this host; as root"),
        ])
        .see(&["evenkeel-trace-info(1)", "evenkeel-history(1)"], &["guide/flight-recorder.md", "reference/config.md"]),
    Facts::traced("trace").see(&["evenkeel-history(1)", "evenkeel-sim(1)"], &["guide/flight-recorder.md"]),
    Facts::traced("trace info")
        .examples(&[
            ("evenkeel trace info night.rec", "rates, sizes, latencies and working set of each tenant"),
            ("evenkeel trace info usr_0.csv --json", "the same of another program's trace, as JSON"),
        ])
        .see(&["evenkeel-trace-plot(1)"], &["guide/flight-recorder.md"]),
    Facts::traced("trace plot")
        .examples(&[("evenkeel trace plot night.rec -o night.html", "plot each tenant's figures over time")])
        .see(&["evenkeel-trace-info(1)"], &["guide/flight-recorder.md"]),
    Facts::traced("trace convert")
        .examples(&[
            ("evenkeel trace convert night.rec -o night.log --to fio", "write an iolog that fio can replay"),
            ("evenkeel trace convert usr_0.csv -o usr.rec", "make a recording from another program's trace"),
            ("evenkeel trace convert night.rec -o shared.rec --anonymise my.key", "scramble names and offsets"),
        ])
        .see(&["evenkeel-trace-info(1)"], &["guide/flight-recorder.md"]),
    Facts::traced("fit")
        .examples(&[
            ("evenkeel fit night.rec -o device.toml", "learn the device, and report the error"),
            ("evenkeel fit night.rec --family nvme --family store", "try two families of models only"),
        ])
        .see(&["evenkeel-replay(1)", "evenkeel-sim(1)"], &["guide/flight-recorder.md", "algorithms/models.md"]),
    Facts::traced("replay")
        .examples(&[
            ("evenkeel replay night.rec --device device.toml --policy new.toml", "compare two policies"),
            (
                "evenkeel replay night.rec --device device.toml --set device.iops=50000 --html night.html",
                "a faster device, with plots",
            ),
        ])
        .see(&[TOML, "evenkeel-fit(1)", "evenkeel-advise(1)"], &["guide/flight-recorder.md"]),
    Facts::traced("advise")
        .examples(&[
            ("evenkeel advise night.rec --policy wish.toml", "settings that meet the targets of a policy"),
            (
                "evenkeel advise night.rec --policy wish.toml --device device.toml --set tenants.a.latency.target=5ms",
                "settings for another target, on a known device",
            ),
        ])
        .see(&[TOML, "evenkeel-fit(1)", "evenkeel-replay(1)"], &["guide/flight-recorder.md"]),
    Facts::control("state")
        .examples(&[
            ("evenkeel state", "show the server of ./evenkeel-data"),
            ("evenkeel state --config /etc/evenkeel/evenkeel.toml --json", "the whole record of the package's server"),
        ])
        .see(&["evenkeel-top(1)"], &["guide/serve.md", "reference/api.md"]),
    Facts::control("volume").see(&["evenkeel-serve(1)", TOML], &["guide/serve.md"]),
    Facts::control("volume list")
        .examples(&[("evenkeel volume list", "show all volumes with size, pool and tenant")])
        .see(&["evenkeel-volume-create(1)", "evenkeel-state(1)"], &["guide/serve.md"]),
    Facts::control("volume show")
        .examples(&[("evenkeel volume show db1", "show its settings, allocated space and connections")])
        .see(&["evenkeel-volume-list(1)", "evenkeel-state(1)"], &["guide/serve.md"]),
    Facts::control("volume set")
        .examples(&[("evenkeel volume set db1 --tenant database", "count its requests as those of tenant database")])
        .see(&["evenkeel-volume-create(1)", "evenkeel-volume-grow(1)"], &["guide/serve.md"]),
    Facts::of("volume create")
        .examples(&[
            ("evenkeel volume create db1 --size 20GiB --tenant database", "a sparse file in the data folder"),
            ("evenkeel volume create lv1 --backend block --path /dev/vg1/lv1", "a block device"),
        ])
        .files(DATA)
        .see(&["evenkeel-volume-grow(1)", "evenkeel-volume-remove(1)", TOML], &["guide/serve.md"]),
    Facts::control("volume grow")
        .examples(&[("evenkeel volume grow db1 40GiB", "clients see the new size when they reconnect")])
        .see(&["evenkeel-volume-create(1)"], &["guide/serve.md"]),
    Facts::control("volume remove")
        .examples(&[("evenkeel volume remove db1", "end its connections; the file stays")])
        .see(&["evenkeel-volume-create(1)"], &["guide/serve.md"]),
    Facts::control("tenant").see(&[TOML, "evenkeel-reload(1)"], &["guide/serve.md"]),
    Facts::control("tenant list")
        .examples(&[("evenkeel tenant list", "show the tenants of all pools")])
        .see(&["evenkeel-tenant-set(1)", "evenkeel-state(1)"], &["guide/serve.md"]),
    Facts::control("tenant show")
        .examples(&[("evenkeel tenant show backup", "show its settings, verdicts and throttle")])
        .see(&["evenkeel-tenant-list(1)", "evenkeel-why(1)"], &["guide/serve.md"]),
    Facts::control("tenant add")
        .examples(&[
            ("evenkeel tenant add web --match volume:web-*", "a tenant of all volumes web-*"),
            ("evenkeel tenant add web --limit-iops 5000 --save", "add it to the configuration file, too"),
        ])
        .see(&[TOML, "evenkeel-tenant-set(1)", "evenkeel-tenant-remove(1)"], &["guide/serve.md"]),
    Facts::control("tenant remove")
        .examples(&[("evenkeel tenant remove web --save", "remove it, from the file as well")])
        .see(&["evenkeel-tenant-add(1)", "evenkeel-reload(1)"], &["guide/serve.md"]),
    Facts::control("tenant set")
        .examples(&[
            ("evenkeel tenant set backup --limit-bytes-per-s 50MB", "at most 50 MB/s"),
            ("evenkeel tenant set database --reservation-iops 2000 --weight 4", "2000 IOPS reserved, and weight 4"),
            ("evenkeel tenant set database --latency 10ms@99", "a latency target, on pools with slots"),
            ("evenkeel tenant set backup --limit-when 08:00-20:00", "apply its limit by day only"),
            ("evenkeel tenant set backup --pool fast --limit-iops 500", "a limit on the pool fast alone"),
            ("evenkeel tenant set backup --limit-iops 500 --save", "set it in the configuration file, too"),
        ])
        .see(&[TOML, "evenkeel-reload(1)", "evenkeel-pool-set(1)"], &["guide/serve.md", "algorithms/mclock.md"]),
    Facts::control("pool").see(&[TOML, "evenkeel-reload(1)"], &["guide/serve.md"]),
    Facts::control("pool list")
        .examples(&[("evenkeel pool list", "show all pools with admission and limits")])
        .see(&["evenkeel-pool-set(1)", "evenkeel-state(1)"], &["guide/serve.md"]),
    Facts::control("pool show")
        .examples(&[("evenkeel pool show main", "show its settings, figures and tenants")])
        .see(&["evenkeel-pool-list(1)", "evenkeel-state(1)"], &["guide/serve.md"]),
    Facts::control("pool add")
        .examples(&[("evenkeel pool add fast --limit-iops 50000 --save", "add a pool, in the configuration file, too")])
        .see(&[TOML, "evenkeel-pool-set(1)", "evenkeel-pool-remove(1)"], &["guide/serve.md"]),
    Facts::control("pool remove")
        .examples(&[("evenkeel pool remove fast", "remove a pool that has no volumes")])
        .see(&["evenkeel-pool-add(1)", "evenkeel-reload(1)"], &["guide/serve.md"]),
    Facts::control("pool set")
        .examples(&[
            ("evenkeel pool set main --latency 20ms@99", "a latency target of reads"),
            ("evenkeel pool set main --limit-iops 20000", "at most 20000 requests a second"),
            ("evenkeel pool set main --admission fixed:1MiB", "1 MiB in flight, in place of elastic"),
            ("evenkeel pool set main --latency none --save", "remove the latency target, from the file as well"),
        ])
        .see(&[TOML, "evenkeel-reload(1)", "evenkeel-tenant-set(1)"], &["guide/serve.md", "algorithms/elastic.md"]),
    Facts::control("server").see(&[TOML, "evenkeel-reload(1)"], &["guide/serve.md"]),
    Facts::control("server set")
        .examples(&[
            ("evenkeel server set --workers 4", "serve with four threads"),
            ("evenkeel server set --drain-timeout 1m --save", "set it in the configuration file, too"),
        ])
        .see(&[TOML, "evenkeel-reload(1)"], &["guide/serve.md"]),
    Facts::control("reload")
        .examples(&[
            ("evenkeel reload --config /etc/evenkeel/evenkeel.toml", "list the changes, or the cause of none"),
            ("evenkeel reload --dry-run", "list the changes that a reload would make, and make none"),
        ])
        .see(&["evenkeel-check(1)", TOML], &["guide/serve.md"]),
    Facts::of("completions")
        .examples(&[(
            "evenkeel completions bash > ~/.local/share/bash-completion/completions/evenkeel",
            "for bash, from the next shell on",
        )])
        .files(&[("/usr/share/bash-completion/completions/evenkeel", "the package's, for bash")])
        .see(&["evenkeel(1)"], &["guide/install.md"]),
    Facts::of("manual")
        .examples(&[("evenkeel manual man1", "write every page into the folder man1")])
        .files(&[MANUAL])
        .see(&["evenkeel(1)", TOML], &["guide/install.md"]),
    Facts::of("help")
        .examples(&[
            ("evenkeel help tenant set", "the help of a command"),
            ("evenkeel help noisy neighbour", "the glossary's definition, keys, metrics and sections of pages"),
            ("evenkeel help --search pool", "the manual about a term that is also the name of a command"),
            ("evenkeel help --page serve | less", "a whole page"),
        ])
        .files(&[MANUAL])
        .status(FOUND)
        .see(&["evenkeel(1)", TOML], &["glossary.md", "README.md"]),
];
