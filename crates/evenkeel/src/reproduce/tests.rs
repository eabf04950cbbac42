/// The program's parser accepts the options of the experiment harm; other experiments refuse them.
#[test]
fn options_for_harm_are_read_and_others_are_refused() {
    use clap::{Args as _, FromArgMatches as _};
    let parse = |words: &[&str]| {
        let command = super::Args::augment_args(clap::Command::new("reproduce"));
        let matches = command.try_get_matches_from([&["reproduce"], words].concat())?;
        super::Args::from_arg_matches(&matches)
    };
    let args =
        parse(&["harm", "--cases", "40", "--controller", "slots", "--write-failures", "failures", "--record"]).unwrap();
    assert_eq!((args.seed, args.harm.given()), (None, Some("--cases")));
    for refused in [
        &["harm", "--cases", "1001"][..],
        &["harm", "--cases", "9", "--quick"],
        &["drg", "--traces", "folder", "--record"],
        &["drg", "--tune", "--quick"],
        &["drg", "--tune", "--seeds", "3"],
        &["drg", "--seeds", "0"],
    ] {
        assert!(parse(refused).is_err(), "{refused:?}");
    }
    for (words, why) in [
        (&["drg", "--cases", "9"][..], "--cases is for harm"),
        (&["harm", "--seed", "1", "--record"], "--record of harm takes no --seed"),
        // Tests run in the folder of the package.
        (&["drg", "--record"], "run it in their root folder"),
        (&["drg", "--tune"], "run it in their root folder"),
        (&["harm", "--seeds", "3"], "--seeds is for other experiments"),
        (&["bufferbloat", "--tune"], "--tune is for iscsi, saat, messenger, drg"),
        (&["all", "--record"], "run it in their root folder"),
        (&["all", "--record", "--seed", "1"], "--record of harm takes no --seed"),
        (&["all", "--tune"], "--tune is for one experiment"),
        (&["all", "--report", "page.html"], "--report is for one experiment"),
        (&["all", "--traces", "folder"], "--traces is for saat and drg"),
        (&["all", "--controller", "slots"], "--controller is for harm"),
    ] {
        let error = format!("{:#}", super::show(&parse(words).unwrap()).unwrap_err());
        assert!(error.contains(why), "{error}");
    }
    assert_eq!(parse(&["saat", "--seeds", "30"]).unwrap().seeds, Some(30));
    let all = parse(&["all", "--seeds", "30", "--quick", "--json"]).unwrap();
    assert_eq!((all.seeds, all.quick, all.json, all.experiment), (Some(30), true, true, super::Chosen::All));
    let report = std::env::temp_dir().join(format!("evenkeel-reproduce-{}.html", std::process::id()));
    let words = ["drg", "--cases", "9", "--report", report.to_str().unwrap()];
    assert!(super::show(&parse(&words).unwrap()).unwrap_err().is::<super::Usage>());
    assert!(!report.exists(), "an empty report is left");
}
