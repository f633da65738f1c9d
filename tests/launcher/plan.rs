//! Hosts, slots, environment: what is decided before anything starts.

use crate::support::{ended, run, script};

#[test]
fn a_dry_run_shows_everything_but_the_key_and_starts_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let mark = dir.path().join("mark");
    let mut command = run(&["-np", "3", "-H", "localhost:4", "--dry-run", "touch", mark.to_str().expect("a name")]);
    command.env("SLURM_PROCID", "1");
    let end = ended(command);
    assert_eq!(end.code(), Some(0), "{}", end.stderr);
    let text = end.text();
    for part in [
        "3 ranks on 1 host\n",
        "/touch)\n",
        "    2  localhost                2/3     0/1  any\n",
        "  PHALANX_SIZE=3\n",
        "  PHALANX_KEY=<random>\n",
        "another launcher set it: SLURM_PROCID\n",
    ] {
        assert!(text.contains(part), "{part:?} in\n{text}");
    }
    assert!(!mark.exists());
}

#[test]
fn ranks_know_who_they_are() {
    let end = ended(script(
        2,
        &["--env", "A=b c", "-x", "HOME", "--transport", "tcp", "--algorithm", "two-shot"],
        r#"echo $PHALANX_RANK/$PHALANX_SIZE $PHALANX_LOCAL_RANK/$PHALANX_LOCAL_SIZE $PHALANX_CROSS_RANK/$PHALANX_CROSS_SIZE \
            "$A" ${#PHALANX_KEY} ${PHALANX_RENDEZVOUS%:*} $PHALANX_TRANSPORT $PHALANX_ALGORITHM ${RANK-unset}"#,
    ));
    assert_eq!(
        end.sorted(),
        ["[0] 0/2 0/2 0/1 b c 64 127.0.0.1 tcp two_shot unset", "[1] 1/2 1/2 0/1 b c 64 127.0.0.1 tcp two_shot unset"]
    );
}

#[test]
fn the_key_is_new_for_each_job_and_on_no_command_line() {
    let key = |_| {
        let end = ended(script(2, &[], r#"[ $PHALANX_RANK = 1 ] || { echo $PHALANX_KEY; cat /proc/[0-9]*/cmdline; }"#));
        let stdout = String::from_utf8_lossy(&end.stdout).into_owned();
        let key = stdout.lines().next().expect("a line").strip_prefix("[0] ").expect("a prefix").to_owned();
        assert_eq!(stdout.matches(&key).count(), 1, "it is on a command line");
        key
    };
    let keys: Vec<_> = (0..2).map(key).collect();
    assert_ne!(keys[0], keys[1]);
}

#[test]
fn other_launchers_variables_do_not_reach_the_ranks() {
    let mut command = script(1, &[], "env");
    for (name, value) in [
        ("OMPI_COMM_WORLD_RANK", "5"),
        ("PMI_RANK", "5"),
        ("SLURM_PROCID", "5"),
        ("SLURM_JOB_ID", "77"),
        ("WORLD_SIZE", "9"),
        ("PHALANX_RANK", "5"),
        ("PHALANX_KEY", "5"),
        ("PHALANX_TIMEOUT", "20"),
    ] {
        command.env(name, value);
    }
    let text = ended(command).text();
    for gone in ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "WORLD_SIZE", "PHALANX_KEY"] {
        assert!(!text.contains(&format!("[0] {gone}=")), "{gone}");
    }
    for kept in ["PHALANX_RANK=0", "SLURM_JOB_ID=77", "PHALANX_TIMEOUT=20"] {
        assert!(text.contains(&format!("[0] {kept}\n")), "{kept}");
    }
}

#[test]
fn other_launchers_names_are_set_when_asked_for() {
    let end = ended(script(
        2,
        &["--compat", "torch", "--compat", "horovod"],
        "echo $RANK $WORLD_SIZE $LOCAL_RANK $MASTER_ADDR ${MASTER_PORT:+port} $HOROVOD_RANK $HOROVOD_CROSS_SIZE",
    ));
    assert_eq!(end.sorted(), ["[0] 0 2 0 127.0.0.1 port 0 1", "[1] 1 2 1 127.0.0.1 port 1 1"]);
}

#[test]
fn hosts_and_slots_are_held_to() {
    let fails = |arguments: &[&str], words: &str| {
        let end = ended(run(arguments));
        assert_eq!(end.code(), Some(2), "{arguments:?}");
        assert!(end.stderr.contains(words), "{words:?} in {}", end.stderr);
    };
    fails(&["-np", "3", "-H", "localhost:2", "true"], "-np 3 does not fit the 2 slots of localhost:2");
    fails(&["-np", "2", "-H", "nowhere.example:2", "true"], "ssh");
    fails(&["-np", "2", "-H", "localhost:x", "true"], "\"x\" is not a number of slots");
    fails(&["-np", "2", "--hostfile", "/nowhere/hosts", "true"], "--hostfile /nowhere/hosts: No such file");
    fails(&["-np", "2", "--env", "PHALANX_RANK=1", "true"], "the launcher decides");
    assert_eq!(ended(run(&["-H", "localhost:2,127.0.0.1", "echo", "x"])).sorted().len(), 3, "a rank for each slot");
    assert_eq!(ended(run(&["-np", "3", "-H", "[::1]:1", "--oversubscribe", "echo", "x"])).sorted().len(), 3);

    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("hosts");
    let name = file.to_str().expect("a name");
    std::fs::write(&file, "# here\nlocalhost slots=2\n127.0.0.1:1\n").expect("writable");
    assert_eq!(ended(run(&["-hostfile", name, "echo", "x"])).sorted().len(), 3);
    std::fs::write(&file, "localhost\nlocalhost slots:2\n").expect("writable");
    fails(&["--hostfile", name, "true"], &format!("{name}:2: \"slots:2\" is not understood"));
}

#[test]
fn ranks_are_bound_when_asked() {
    let end = ended(script(3, &["--bind-to", "core"], "grep Cpus_allowed_list /proc/self/status | cut -f 2"));
    assert_eq!(end.code(), Some(0), "{}", end.stderr);
    let cores = phalanx::launch::binding::topology(&phalanx::sys::process::affinity().expect("a system that tells"));
    let cores = phalanx::launch::binding::cores(cores);
    for line in end.text().lines() {
        let (rank, list) = line.split_once("] ").expect("a prefix");
        let rank: usize = rank.trim_start_matches('[').parse().expect("a rank");
        let bound: usize = list
            .split(',')
            .map(|part| match part.split_once('-') {
                Some((first, last)) => {
                    last.parse::<usize>().expect("a cpu") - first.parse::<usize>().expect("a cpu") + 1
                }
                None => 1,
            })
            .sum();
        assert_eq!(bound, cores[rank % cores.len()].len(), "{line}");
    }
    assert_eq!(end.stderr.contains("share cores in turn"), cores.len() < 3, "{}", end.stderr);
}

#[test]
fn the_command_keeps_its_own_options() {
    let end = ended(run(&["-np", "1", "echo", "-np", "3", "--env", "-hostfile", "--", "x"]));
    assert_eq!(end.text(), "[0] -np 3 --env -hostfile -- x\n");
    let end = ended(run(&["-np", "1", "--", "echo", "a"]));
    assert_eq!(end.text(), "[0] a\n");
}

#[test]
fn help_teaches() {
    let end = ended(run(&["--help"]));
    let text = end.text();
    for part in ["Examples:", "Exit codes:", "124", "PHALANX_RENDEZVOUS", "--output-dir", "-np N"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}
