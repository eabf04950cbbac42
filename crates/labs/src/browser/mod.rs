//! The browser lab: the dashboard in a real browser, its display, its use, and its cost. Needs no virtual machine.

mod devtools;
mod stage;
mod watch;

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use self::devtools::Browser;
use self::stage::{Agent, MANY, Server};
use self::watch::{Top, spent};
use crate::base::scratch::Scratch;
use crate::base::{build, process};
use crate::check::run::{Lab, Options};

/// Bar: the longest time until the first paint of the page, which takes 0.1 s on an idle machine.
const PAINTED: Duration = Duration::from_secs(5);
/// Bar: the longest time to sort a thousand tenants, in ms.
const SORTED_MS: f64 = 1_000.0;
/// Bar: the most CPU time of the server for one viewer, and of `evenkeel top` with one update per second, as a fraction of a
/// core. An optimised build needs far less.
const COST: f64 = 0.10;
/// Longest wait for a change of the page: far above any wait on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// The fewest bytes that `evenkeel top` must draw in a few seconds.
const DRAWN: usize = 1_000;
/// Time before a tenant's verdict is read, so that it can settle.
const SETTLING: Duration = Duration::from_secs(5);
/// Number of times that a settled verdict is read; more than half of the readings must show the expected one.
const LOOKS: usize = 5;
/// Time between two readings of a verdict.
const LOOK: Duration = Duration::from_millis(1_100);

/// A tenant's name that changes the page if the page treats it as markup.
const HOSTILE: &str = "<img src=x onerror=document.title='struck'>";

/// JavaScript that refuses the page's next question about the history, and cuts off, in the two after it, the time since
/// now. So the page is answered as by a server that has no history yet, and then has not recorded the second after its restart.
const EARLY: &str = "(() => {
    const [real, now] = [fetch, Math.floor(Date.now() / 1e3)];
    let left = 3;
    window.fetch = async (path, ...others) => {
        const isEarly = left > 0 && path.startsWith('/api/v1/history');
        const answer = await real(isEarly ? path.replace(/&to=\\d+/, `&to=${now}`) : path, ...others);
        if (isEarly) left -= 1;
        return isEarly && left === 2 ? new Response('{}', { status: 404 }) : answer;
    };
})()";

/// JavaScript that puts one trouble in place of those that the server answers: a target of pool `small`, which does least.
const TROUBLED: &str = "(() => {
    const real = fetch;
    const trouble = { level: 'warning', kind: 'target_missed', about: 'tenant hopeless in pool small', because: 'its reservation is missed', cure: 'lower it' };
    window.fetch = async (path, ...others) => {
        const answer = await real(path, ...others);
        if (!path.startsWith('/api/v1/state')) return answer;
        const state = await answer.json();
        state.health.troubles = [trouble];
        return new Response(JSON.stringify(state), answer);
    };
})()";

/// JavaScript that turns to the last row of the table of tenants, reverses the order of all rows, and returns true if that row is
/// the first one then and still has the focus.
const REVERSED: &str = "(() => {
    const [name, iops] = document.querySelectorAll('#tenants thead button');
    name.click();
    const link = document.querySelector('#tenants tbody tr:last-child a');
    link.focus();
    name.click();
    const isKept = document.activeElement === link && link.closest('tr').rowIndex === 1;
    iops.click();
    link.blur();
    return isKept;
})()";

/// JavaScript that puts another version in the server's answers.
const UPGRADED: &str = "(() => {
    const real = fetch;
    window.isOld = true;
    window.fetch = async (path, ...others) => {
        const answer = await real(path, ...others);
        if (!path.startsWith('/api/v1/state')) return answer;
        const state = await answer.json();
        state.version = 'another';
        return new Response(JSON.stringify(state), answer);
    };
})()";

/// JavaScript that defines `row(name)`, the row of a tenant in the page's table.
const ROW: &str = "const row = name => [...document.querySelectorAll('#tenants tbody tr')].find(tr => tr.cells[0].textContent === name);";

/// Runs the lab and reports each step.
pub(crate) fn run(lab: &mut Lab, options: &Options) -> Result<()> {
    let program = process::find_program("chromium").context("chromium is not installed")?;
    let scratch = Scratch::kept_if(options.keep, "browser")?;
    let pictures = build::target_dir()?.join("xtask/browser");
    std::fs::create_dir_all(&pictures).with_context(|| format!("cannot make {}", pictures.display()))?;
    let mut browser = Browser::start(&program, scratch.path())?;
    browser.resize(1280, 800)?;
    many(lab, options, &scratch, &mut browser, &pictures)?;

    let mut server = Server::with_some(&options.binary, scratch.path())?;
    let clients = server.load()?;
    browser.open(&server.page_of("main"))?;
    figures(lab, &mut browser)?;
    queued(lab, &mut browser)?;
    limited(lab, &mut browser)?;
    decisions(lab, &mut browser)?;
    keys(lab, &mut browser)?;
    access(lab, &mut browser)?;
    looks(lab, &mut browser, &pictures)?;
    opening(lab, &mut browser, &server)?;
    past(lab, &mut browser, &server, &pictures)?;
    silence(lab, &mut browser, &server.page());
    hostile(lab, &mut browser, &server)?;
    long_name(lab, &mut browser, &server, &pictures)?;
    moments(lab, &mut browser, &server)?;
    upgrade(lab, &mut browser, &server)?;

    browser.open(&server.page())?;
    browser.wait_for("document.body.dataset.status === 'live'")?;
    server.fall();
    browser.wait_for("!document.getElementById('lost').hidden && document.body.dataset.status === 'lost'")?;
    picture(&mut browser, &pictures, "lost")?;
    let told = browser.text("document.getElementById('lost').textContent")?;
    lab.check("a_lost_server_is_shown", told.contains("No answer from the server since"), &told);
    browser.value(EARLY)?;
    // The history has a gap only where a whole second is missing.
    std::thread::sleep(Duration::from_secs(2));
    server.rise("database")?;
    let took = browser.wait_for("document.getElementById('lost').hidden && document.body.dataset.status === 'live'")?;
    lab.passed("and_found_again", &format!("{:.1} s after it served again", took.as_secs_f64()));
    let gaps = "document.getElementById('gaps').textContent";
    let named = browser.wait_for(&format!("{gaps}.includes('No record from') && {gaps}.includes('kill -9')"));
    let told = browser.text(gaps)?;
    named.with_context(|| format!("the page says {told:?}"))?;
    lab.passed("and_the_gap_is_named", &told);
    drop(clients);
    let agent = Agent::start(&options.binary, scratch.path())?;
    browser.open(&agent.page())?;
    browser.wait_for("document.getElementById('subject').textContent === 'Pool nothing-served'")?;
    picture(&mut browser, &pictures, "agent")?;
    let stages =
        browser.text("[...document.querySelectorAll('.stage')].map(stage => stage.dataset.stage).join(' ')")?;
    let told = browser.text("document.getElementById('summary').textContent")?;
    let same = stages == "clients packets device" && told.contains("NOT ACTING");
    lab.check("an_agent_has_the_same_page", same, &format!("{told}; {stages}"));
    Ok(())
}

/// Checks that the page opens at the pool of the first trouble.
fn opening(lab: &mut Lab, browser: &mut Browser, server: &Server) -> Result<()> {
    browser.open(&server.page())?;
    let first = "document.querySelector('#troubles a')";
    browser.wait_for(&format!(
        "{first} !== null && document.getElementById('subject').textContent === 'Pool ' + {first}.hash.split('/')[1]"
    ))?;
    lab.passed("it_opens_at_the_first_trouble", &browser.text(&format!("{first}.textContent"))?);

    let added = browser.call("Page.addScriptToEvaluateOnNewDocument", json!({"source": TROUBLED}))?;
    browser.open(&server.page())?;
    let subject = "document.getElementById('subject').textContent";
    browser.wait_for(&format!("{subject} === 'Pool small' && {first}?.hash === '#/small/hopeless'"))?;
    lab.passed("though_another_pool_does_most", &browser.text(&format!("{first}.textContent"))?);
    browser.value("location.hash = '#/main'")?;
    browser.wait_for(&format!("{subject} === 'Pool main' && {first} !== null"))?;
    browser.value(&format!("{first}.click()"))?;
    browser.wait_for(&format!("{subject} === 'Tenant hopeless'"))?;
    lab.passed("and_a_trouble_is_a_link_to_its_subject", &browser.text("location.hash")?);
    browser.call("Page.removeScriptToEvaluateOnNewDocument", json!({"identifier": added["identifier"]})).map(drop)
}

/// Checks that a volume whose requests wait for its limit is shown as at that limit, with the reason in the cell's tooltip, and
/// one that waits for its pool's limit is not.
fn limited(lab: &mut Lab, browser: &mut Browser) -> Result<()> {
    let state = |volume: &str| {
        format!(
            "[...document.querySelectorAll('#volumes tbody tr')].find(tr => tr.cells[0].textContent === '{volume}')?.querySelector('[data-key=trouble]')"
        )
    };
    let (limited, capped) = (state("limited"), state("capped"));
    let why = "volume limited is at its limit of 20 IOPS, set by the operator";
    browser.wait_for(&format!(
        "{limited}?.textContent === 'at its limit of 20 IOPS' && {limited}.title === '{why}' && {capped}?.textContent === 'ok'"
    ))?;
    lab.passed("a_volume_at_its_limit_is_marked", why);
    Ok(())
}

/// Checks that plots begin with figures from before the page was opened, and that a moment of the past can be shown by keys
/// alone.
fn past(lab: &mut Lab, browser: &mut Browser, server: &Server, pictures: &Path) -> Result<()> {
    browser.open(&server.page_of("main"))?;
    let opened = Instant::now();
    let slider = "document.querySelector('[data-plot=throughput] [role=slider]')";
    browser.wait_for(&format!("{slider} !== null"))?;
    browser.value(&format!("{slider}.focus()"))?;
    browser.press("PageUp")?;
    let read = "document.activeElement.getAttribute('aria-valuetext')";
    browser.wait_for(&format!("/^30 s ago: got .*[1-9]/.test({read})"))?;
    let (took, told) = (opened.elapsed(), browser.text(read)?);
    lab.check("plots_begin_before_the_page_was_opened", took < Duration::from_secs(30), &format!("{told}, {took:?}"));
    browser.press("Escape")?;
    browser.value("document.activeElement.blur()")?;

    let moment = browser.text("String(Math.floor(Date.now() / 1000) - 20)")?;
    browser.press("a")?;
    browser.wait_for("document.activeElement.id === 'at'")?;
    for key in moment.chars() {
        browser.press(&key.to_string())?;
    }
    browser.press("Enter")?;
    let rate = format!("(() => {{ {ROW} return row('backup')?.cells[1].textContent ?? ''; }})()");
    browser.wait_for(&format!("document.body.dataset.status === 'past' && /[1-9]/.test({rate})"))?;
    let then = browser.text(&rate)?;
    thread::sleep(Duration::from_secs(3));
    let later = browser.text(&rate)?;
    let told = browser.text("document.getElementById('when').textContent")?;
    picture(browser, pictures, "past")?;
    lab.check("a_moment_is_shown_and_stays", then == later, &format!("{told} backup {then} IOPS, then {later}"));
    browser.press("Escape")?;
    browser.press("r")?;
    browser.wait_for("document.querySelector('#lengths [aria-pressed=true]').textContent === 'hour'")?;
    browser.press("l")?;
    browser.wait_for("document.body.dataset.time === 'present' && document.body.dataset.status === 'live'")?;
    lab.passed("and_keys_lead_back", &browser.text("location.search")?);
    browser.press("r")?;
    browser.press("r")?;
    browser.press("r")?;
    browser.wait_for("location.search === ''").map(drop)
}

/// Checks the page of a server with a thousand tenants: time to the first paint, search, paging, cost.
fn many(lab: &mut Lab, options: &Options, scratch: &Scratch, browser: &mut Browser, pictures: &Path) -> Result<()> {
    let server = Server::with_many(&options.binary, scratch.path())?;
    let load = server.load_some(scratch.path())?;
    browser.open(&server.page())?;
    browser.wait_for("performance.getEntriesByName('first-contentful-paint').length > 0")?;
    let painted = browser.value("performance.getEntriesByName('first-contentful-paint')[0].startTime")?;
    let painted = Duration::from_secs_f64(painted.as_f64().context("no time of the first paint")? / 1e3);
    let shown = browser.wait_for("document.querySelectorAll('#tenants tbody tr').length > 0")?;
    let told = format!("{} ms, and tenants {} ms later", painted.as_millis(), shown.as_millis());
    lab.passed("a_thousand_tenants_are_shown", &told);
    let bar = format!("{} ms", PAINTED.as_millis());
    let value = format!("{} ms", painted.as_millis());
    lab.judge(options, "the_first_paint_is_quick", &value, &bar, painted < PAINTED);

    let info = "document.querySelector('#tenants .info').textContent";
    let all = browser.text(info)?;
    let rows = browser.value("document.querySelectorAll('#tenants tbody tr').length")?;
    let expected = format!("1 to 20 of {}", MANY + 1);
    lab.check("a_thousand_tenants_are_paged", all == expected && rows == 20, &format!("{all}; {rows} rows"));
    browser.press("n")?;
    browser.wait_for(&format!("{info}.startsWith('21 to 40')"))?;
    browser.press("/")?;
    for key in "-0777".chars() {
        browser.press(&key.to_string())?;
    }
    browser.wait_for("document.querySelectorAll('#tenants tbody tr').length === 1")?;
    let found = browser.text("document.querySelector('#tenants tbody th').textContent")?;
    lab.check("and_searched", found == "tenant-0777", &found);
    browser.press("Escape")?;
    browser.wait_for(&format!("{info} === '{expected}'"))?;
    let sort = "(() => { const begun = performance.now(); document.querySelector('#tenants thead button').click(); return performance.now() - begun; })()";
    let sorted = browser.value(sort)?.as_f64().unwrap_or(f64::INFINITY);
    let first = browser.text("document.querySelector('#tenants tbody th').textContent")?;
    lab.check("and_sorted", first == "default", &format!("{first} first"));
    let bar = format!("{SORTED_MS} ms");
    lab.judge(options, "and_sorted_soon", &format!("{sorted:.1} ms"), &bar, sorted < SORTED_MS);

    let clients = "document.querySelector('[data-stage=clients] .figure').textContent";
    browser.wait_for(&format!("!{clients}.startsWith('0 ')"))?;
    let clients = browser.text(clients)?;
    let with_viewer = spent(options, server.id()?, None)?;
    println!("lab: with {clients} the server takes {} of a core in all", percent(with_viewer.serving));
    let (value, bar) = (percent(with_viewer.answering), percent(COST));
    lab.judge(options, "one_viewer_costs_the_server_little", &value, &bar, with_viewer.answering < COST);
    picture(browser, pictures, "thousand-tenants")?;

    browser.call("Page.navigate", json!({"url": "about:blank"}))?;
    let top = Top::start(&options.binary, server.status())?;
    let draws = |what: &str| {
        let (begun, mut drawn, mut seen) = (Instant::now(), 0, false);
        while begun.elapsed() < PATIENCE && !(seen && drawn > DRAWN) {
            thread::sleep(Duration::from_millis(200));
            let (bytes, is_there) = top.drew(what);
            (drawn, seen) = (drawn + bytes, seen || is_there);
        }
        (seen && drawn > DRAWN, drawn)
    };
    let (began, first) = draws("tenant-0");
    let with_top = spent(options, server.id()?, Some(top.id()))?;
    top.drew("");
    let (goes_on, more) = draws("");
    lab.check("top_draws_and_goes_on", began && goes_on, &format!("{first} bytes, then {more} more"));
    for (name, share) in [("top_costs_little", with_top.asking), ("and_costs_the_server_little", with_top.answering)] {
        lab.judge(options, name, &percent(share), &percent(COST), share < COST);
    }
    drop(load);
    Ok(())
}

fn percent(part: f64) -> String {
    format!("{:.2} %", 100.0 * part)
}

/// Checks the figures that the page shows of tenants under load.
fn figures(lab: &mut Lab, browser: &mut Browser) -> Result<()> {
    let title = browser.text("document.title")?;
    lab.check("it_has_a_title", title.ends_with("Evenkeel"), &title);
    let rates = format!(
        "(() => {{ {ROW} return ['database', 'shop', 'backup'].map(name => row(name)?.cells[1].textContent ?? '').join(' '); }})()"
    );
    browser.wait_for(&format!("!/(^| )(|0|–)( |$)/.test({rates})"))?;
    let first = browser.text(&rates)?;
    browser.wait_for(&format!("{rates} !== '{first}'"))?;
    lab.passed("figures_of_tenants_appear_and_change", &format!("IOPS {first}, then {}", browser.text(&rates)?));
    let held = format!("(() => {{ {ROW} return row('backup').querySelector('[data-key=hold]').textContent; }})()");
    browser.wait_for(&format!("/operator|latency/.test({held})"))?;
    lab.passed("who_is_throttled_is_shown", &browser.text(&held)?);
    let met = judged(browser, "database", "met")?;
    browser.value("location.hash = '#/small'")?;
    browser.wait_for(&format!("(() => {{ {ROW} return /[1-9]/.test(row('hopeless')?.cells[1].textContent); }})()"))?;
    let missed = judged(browser, "hopeless", "MISSED")?;
    browser.value("location.hash = '#/main'")?;
    lab.passed("targets_are_judged", &format!("{met}; {missed}"));
    let stages = browser.text("[...document.querySelectorAll('.stage')].map(s => `${s.dataset.stage}: ${s.querySelector('.figure').textContent}`).join(', ')")?;
    let whole = ["clients", "workers", "tenants", "admission", "device"];
    lab.check("the_path_has_every_control_point", whole.iter().all(|stage| stages.contains(stage)), &stages);
    browser.value("location.hash = '#/shared/mail'")?;
    browser.wait_for("document.querySelector('[data-stage=slots] .figure') !== null && document.getElementById('facts').textContent.includes('p99')")?;
    let slots = browser.text("document.querySelector('[data-stage=slots]').textContent")?;
    lab.check("slots_are_part_of_it_where_they_are_shared_out", slots.contains("needs"), &slots);
    browser.value("location.hash = '#/main'")?;
    browser.wait_for("document.getElementById('subject').textContent === 'Pool main'").map(drop)
}

/// Waits for a tenant's verdict to settle, and checks that most readings of it contain `verdict`. Returns the last matching
/// text.
fn judged(browser: &mut Browser, tenant: &str, verdict: &str) -> Result<String> {
    let target =
        format!("(() => {{ {ROW} return row('{tenant}').querySelector('[data-key=target]').textContent; }})()");
    let mut looks = Vec::new();
    thread::sleep(SETTLING);
    for _ in 0..LOOKS {
        thread::sleep(LOOK);
        looks.push(browser.text(&target)?);
    }
    let of_them: Vec<&String> = looks.iter().filter(|told| told.contains(verdict)).collect();
    ensure!(of_them.len() > LOOKS / 2, "the target of {tenant} is not told as {verdict}: {}", looks.join("; "));
    Ok(of_them[of_them.len() - 1].clone())
}

/// Checks that requests over a pool's limit are shown as queued for the limit, not for admission.
fn queued(lab: &mut Lab, browser: &mut Browser) -> Result<()> {
    browser.value("location.hash = '#/capped'")?;
    let marked = "[...document.querySelectorAll('.stage.waiting')].map(stage => stage.dataset.stage).join(' ')";
    browser.wait_for(&format!("{marked} === 'limit'"))?;
    let why = "document.getElementById('why').textContent";
    browser.wait_for(&format!("{why}.startsWith('pool capped is at its limit of 300 IOPS')"))?;
    lab.passed("queued_here_is_the_limit_that_binds", &browser.text(why)?);
    browser.value("location.hash = '#/main'")?;
    browser.wait_for("document.getElementById('subject').textContent === 'Pool main'").map(drop)
}

/// Checks the list of the controllers' decisions, and their marks in the plots.
fn decisions(lab: &mut Lab, browser: &mut Browser) -> Result<()> {
    browser.wait_for("document.querySelectorAll('#timeline button').length > 1")?;
    browser.wait_for("document.querySelectorAll('[data-plot=response] .area').length === 3 && (document.querySelector('[data-plot=response] .area.device').getAttribute('d') ?? '').length > 40")?;
    let told = browser.text("document.querySelector('#timeline button').textContent")?;
    browser.value("document.querySelector('#timeline button').click()")?;
    browser.wait_for(
        "document.querySelectorAll('.marks path.chosen').length === document.querySelectorAll('.plot').length",
    )?;
    lab.passed("a_decision_leads_to_its_mark_in_every_plot", &told);
    browser.value(
        "document.querySelector('#timeline button').click(); document.querySelector('#timeline .chosen') === null",
    )?;
    // By keys alone: where a plot is read, and to the decision that is marked there.
    browser.value("document.querySelector('[data-plot=response] [role=slider]').focus()")?;
    let mut read = String::new();
    for _ in 0..120 {
        browser.press("ArrowLeft")?;
        read = browser.text("document.activeElement.getAttribute('aria-valuetext')")?;
        if read.contains("decision") {
            break;
        }
    }
    browser.press("Enter")?;
    browser.wait_for("document.activeElement.closest('#timeline .chosen') !== null")?;
    lab.passed("and_a_mark_to_its_decision", &read);
    browser.press("Escape")
}

/// Checks that the page can be used with the keyboard alone.
fn keys(lab: &mut Lab, browser: &mut Browser) -> Result<()> {
    browser.value("document.activeElement.blur()")?;
    browser.press("?")?;
    browser.wait_for("document.getElementById('keys').open")?;
    browser.press("Escape")?;
    browser.wait_for("!document.getElementById('keys').open")?;
    browser.press("j")?;
    browser.wait_for("document.getElementById('subject').textContent.startsWith('Tenant')")?;
    browser.press("Escape")?;
    browser.wait_for("document.getElementById('subject').textContent === 'Pool main'")?;
    browser.press("p")?;
    browser.wait_for("document.body.dataset.status === 'paused'")?;
    let asked = browser.requests.len();
    thread::sleep(Duration::from_secs(2));
    browser.value("1")?;
    let while_paused = browser.requests.len() - asked;
    browser.press("p")?;
    browser.wait_for("document.body.dataset.status === 'live'")?;
    lab.check("keys_do_everything", while_paused <= 1, &format!("{while_paused} requests in 2 s of pause"));
    browser.press("t")?;
    browser.wait_for("document.documentElement.dataset.theme === 'light'")?;
    browser.prefer(&[("prefers-color-scheme", "dark")])?;
    let light = browser.text("getComputedStyle(document.body).backgroundColor")?;
    browser.press("t")?;
    let dark = browser.text("getComputedStyle(document.body).backgroundColor")?;
    browser.press("t")?;
    let system = browser.text("getComputedStyle(document.body).backgroundColor")?;
    let told = format!("light {light}, dark {dark}, system {system}");
    lab.check("themes_are_chosen_or_the_system_s", light != dark && dark == system, &told);
    browser.prefer(&[("prefers-reduced-motion", "reduce")])?;
    let moves = browser.text("getComputedStyle(document.querySelector('.stage'), '::after').animationName")?;
    lab.check("nothing_moves_where_that_is_not_wanted", moves == "none", &moves);
    browser.prefer(&[])?;
    let is_kept = browser.value(REVERSED)?;
    lab.check("a_row_that_moves_keeps_the_focus", is_kept == true, "the last row became the first");
    Ok(())
}

/// Checks the page as a screen reader reads it.
fn access(lab: &mut Lab, browser: &mut Browser) -> Result<()> {
    let tree = browser.call("Accessibility.getFullAXTree", json!({}))?;
    let nodes: Vec<&Value> =
        tree["nodes"].as_array().into_iter().flatten().filter(|node| node["ignored"] == false).collect();
    let role = |node: &Value| node["role"]["value"].as_str().unwrap_or_default().to_owned();
    let name = |node: &Value| node["name"]["value"].as_str().unwrap_or_default().trim().to_owned();
    let used =
        ["button", "link", "searchbox", "slider", "combobox", "checkbox", "table", "list", "region", "navigation"];
    let nameless: Vec<String> = nodes
        .iter()
        .filter(|node| used.contains(&role(node).as_str()) && name(node).is_empty())
        // A list without a name is read as a list.
        .map(|node| role(node))
        .filter(|role| role != "list")
        .collect();
    lab.check("whatever_can_be_used_has_a_name", nameless.is_empty(), &nameless.join(", "));
    let wanted = [
        "banner",
        "main",
        "contentinfo",
        "region",
        "table",
        "columnheader",
        "rowheader",
        "heading",
        "slider",
        "status",
    ];
    let absent: Vec<&str> =
        wanted.into_iter().filter(|wanted| !nodes.iter().any(|node| role(node) == *wanted)).collect();
    lab.check("landmarks_tables_and_headings_are_there", absent.is_empty(), &absent.join(", "));
    Ok(())
}

/// Writes screenshots for inspection, and checks that no part of the page extends beyond the window.
fn looks(lab: &mut Lab, browser: &mut Browser, pictures: &Path) -> Result<()> {
    browser.value("location.hash = '#/main/backup'")?;
    browser.wait_for("document.getElementById('subject').textContent === 'Tenant backup'")?;
    let mut wide = Vec::new();
    for (width, height) in [(1280, 800), (800, 900), (420, 900)] {
        browser.resize(width, height)?;
        for theme in ["light", "dark"] {
            browser.prefer(&[("prefers-color-scheme", theme)])?;
            picture(browser, pictures, &format!("{theme}-{width}"))?;
        }
        let beyond = browser.value("document.documentElement.scrollWidth - innerWidth")?.as_i64().unwrap_or(i64::MAX);
        if beyond > 0 {
            wide.push(format!("{beyond} pixels at {width}"));
        }
    }
    browser.resize(1280, 800)?;
    browser.prefer(&[])?;
    let told = if wide.is_empty() { format!("pictures in {}", pictures.display()) } else { wide.join(", ") };
    lab.check("it_fits_into_any_window", wide.is_empty(), &told);
    Ok(())
}

/// Checks that the page loaded nothing from other hosts and wrote nothing to the console.
fn silence(lab: &mut Lab, browser: &mut Browser, page: &str) {
    let foreign = |address: &&String| !address.starts_with("http://127.0.0.1:") && address.as_str() != "about:blank";
    let foreign: Vec<&String> = browser.requests.iter().filter(foreign).collect();
    let told = if foreign.is_empty() {
        format!("{} requests, {page} last", browser.requests.len())
    } else {
        format!("{foreign:?}")
    };
    lab.check("nothing_comes_from_elsewhere", foreign.is_empty(), &told);
    let complaints = browser.complaints.join("; ");
    lab.check("the_console_stays_empty", complaints.is_empty(), &complaints);
}

/// Checks that a tenant's name is never treated as markup. A configuration accepts no such name, so the test inserts it into
/// the server's answers.
fn hostile(lab: &mut Lab, browser: &mut Browser, server: &Server) -> Result<()> {
    let script = format!(
        "const real = fetch; window.fetch = async (...asked) => {{ const answer = await real(...asked); const text = await answer.text(); return new Response(text.replaceAll('\"database\"', {}), answer); }};",
        json!(json!(HOSTILE).to_string())
    );
    let added = browser.call("Page.addScriptToEvaluateOnNewDocument", json!({"source": script}))?;
    browser.open(&server.page_of("main"))?;
    browser.wait_for(&format!(
        "[...document.querySelectorAll('#tenants tbody th')].some(th => th.textContent === {})",
        json!(HOSTILE)
    ))?;
    browser
        .value("[...document.querySelectorAll('#tenants tbody a')].find(a => a.textContent.startsWith('<')).click()")?;
    browser.wait_for("document.getElementById('subject').textContent.includes('<img')")?;
    browser.wait_for("document.getElementById('path').textContent.includes('<img')")?;
    let struck = browser.value("document.querySelectorAll('img').length > 0 || document.title === 'struck'")?;
    lab.check("a_hostile_name_is_text", struck == false, HOSTILE);
    browser.call("Page.removeScriptToEvaluateOnNewDocument", json!({"identifier": added["identifier"]})).map(drop)
}

/// Checks that beside a name of the greatest length target and throttle are in the window of a telephone.
fn long_name(lab: &mut Lab, browser: &mut Browser, server: &Server, pictures: &Path) -> Result<()> {
    let name = "n".repeat(64);
    let script = format!(
        "const real = fetch; window.fetch = async (...asked) => {{ const answer = await real(...asked); const text = await answer.text(); return new Response(text.replaceAll('\"database\"', '\"{name}\"'), answer); }};"
    );
    let added = browser.call("Page.addScriptToEvaluateOnNewDocument", json!({"source": script}))?;
    browser.resize(390, 844)?;
    browser.open(&format!("{}/{name}", server.page_of("main")))?;
    browser.wait_for(&format!("document.getElementById('subject').textContent === 'Tenant {name}'"))?;
    browser.wait_for(&format!("(() => {{ {ROW} return row('{name}') !== undefined; }})()"))?;
    picture(browser, pictures, "long-name-390")?;
    let ends = format!(
        "(() => {{ {ROW} const of = key => row('{name}').querySelector(`[data-key=${{key}}]`).getBoundingClientRect(); return [document.documentElement.scrollWidth, Math.ceil(of('target').right), Math.ceil(of('hold').left) + 60].join(' '); }})()"
    );
    let ends = browser.text(&ends)?;
    let fits = ends.split(' ').all(|end| end.parse::<u32>().is_ok_and(|end| end <= 390));
    lab.check("a_long_name_leaves_room_on_a_telephone", fits, &format!("page, target and throttle end at {ends}"));
    browser.resize(1280, 800)?;
    browser.call("Page.removeScriptToEvaluateOnNewDocument", json!({"identifier": added["identifier"]})).map(drop)
}

/// Checks that a moment in the address counts from the server's clock, and that one that is no moment of the past is the present.
fn moments(lab: &mut Lab, browser: &mut Browser, server: &Server) -> Result<()> {
    let source = "const now = Date.now; Date.now = () => now() + 864e5;";
    let added = browser.call("Page.addScriptToEvaluateOnNewDocument", json!({"source": source}))?;
    browser.open(&format!("{}?at=-20s#/main", server.page()))?;
    let rate = format!("(() => {{ {ROW} return row('backup')?.cells[1].textContent ?? ''; }})()");
    browser.wait_for(&format!("document.body.dataset.status === 'past' && /[1-9]/.test({rate})"))?;
    let told = browser.text("document.getElementById('when').textContent")?;
    lab.check("a_clock_a_day_ahead_makes_no_difference", told.contains(", time zone "), &told);
    browser.call("Page.removeScriptToEvaluateOnNewDocument", json!({"identifier": added["identifier"]}))?;
    for at in ["-99999999999d", "99999999999999999", "2999-01-01"] {
        browser.open(&format!("{}?at={at}#/main", server.page()))?;
        browser.wait_for("document.body.dataset.status === 'live'").with_context(|| at.to_owned())?;
    }
    lab.passed("and_what_is_no_moment_of_the_past_is_the_present", "before 1970, after 2999 and beyond any date");
    Ok(())
}

/// Checks that the page of another version is loaded when the server has become that version.
fn upgrade(lab: &mut Lab, browser: &mut Browser, server: &Server) -> Result<()> {
    browser.open(&server.page())?;
    browser.wait_for("document.body.dataset.status === 'live'")?;
    browser.value(UPGRADED)?;
    let took = browser.wait_for("window.isOld === undefined && document.body.dataset.status === 'live'")?;
    lab.passed("another_version_loads_its_page", &format!("{:.1} s later", took.as_secs_f64()));
    Ok(())
}

fn picture(browser: &mut Browser, folder: &Path, name: &str) -> Result<()> {
    let path: PathBuf = folder.join(format!("{name}.png"));
    if let Err(e) = browser.picture(&path) {
        bail!("no picture {}: {e:#}", path.display());
    }
    Ok(())
}
