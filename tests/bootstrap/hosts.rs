//! Ranks on several hosts: network namespaces with a cable between them. Needs root and `ip`, and says so where it cannot
//! run.

use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::processes::{assert_world, lines, member_command};

/// Two hosts, `10.78.0.1` and `10.78.0.2`, and what stands for ssh between them. All of it goes with the value.
struct Hosts {
    names: [String; 2],
    folder: tempfile::TempDir,
}

fn ip(words: &str) -> bool {
    let status = Command::new("ip").args(words.split(' ')).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

impl Hosts {
    /// None where namespaces cannot be made.
    fn new(what: &str) -> Option<Hosts> {
        let names = [1, 2].map(|host| format!("phx-{}-{what}{host}", std::process::id()));
        let hosts = Hosts { names, folder: tempfile::tempdir().unwrap() };
        let [one, two] = &hosts.names;
        if !ip(&format!("netns add {one}")) || !ip(&format!("netns add {two}")) {
            eprintln!("not tested: network namespaces cannot be made here (no root, or no iproute2)");
            return None;
        }
        assert!(ip(&format!("-n {one} link add eth0 type veth peer name eth0 netns {two}")));
        for (at, name) in hosts.names.iter().enumerate() {
            assert!(ip(&format!("-n {name} addr add 10.78.0.{}/24 dev eth0", at + 1)));
            assert!(ip(&format!("-n {name} link set eth0 up")) && ip(&format!("-n {name} link set lo up")));
        }
        let script = format!(
            "#!/bin/sh\nwhile [ \"${{1#-}}\" != \"$1\" ]; do shift; done\nhost=$1; shift\n\
             case $host in 10.78.0.1) name={one};; 10.78.0.2) name={two};; *) exit 1;; esac\n\
             exec ip netns exec $name sh -c \"$*\"\n"
        );
        let path = hosts.remote_shell();
        let mut file = std::fs::OpenOptions::new().create_new(true).write(true).mode(0o755).open(path).unwrap();
        std::io::Write::write_all(&mut file, script.as_bytes()).unwrap();
        Some(hosts)
    }

    fn remote_shell(&self) -> PathBuf {
        self.folder.path().join("ssh")
    }

    /// The members, started on the first host by `launcher` or, without one, by hand on `host`.
    fn command(&self, host: usize, launcher: &str) -> Command {
        let shell = self.remote_shell();
        let inside = format!("ip netns exec {} {launcher}", self.names[host]);
        let inside = inside.replace("SHELL", shell.to_str().unwrap());
        let words: Vec<_> = inside.split_ascii_whitespace().collect();
        let mut command = member_command(&words);
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1").stdin(Stdio::null());
        command
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&format!("netns del {name}"));
        }
    }
}

#[test]
fn by_hand_over_an_address_and_over_a_file() {
    let Some(hosts) = Hosts::new("h") else { return };
    let file = format!("file://{}/meet", hosts.folder.path().display());
    for (rendezvous, key) in [("10.78.0.1:4000", Some("5a".repeat(32))), (file.as_str(), None)] {
        let children: Vec<_> = (0..2)
            .map(|rank| {
                let mut command = hosts.command(rank, "");
                command.env("PHALANX_RANK", rank.to_string()).env("PHALANX_SIZE", "2");
                command.env("PHALANX_RENDEZVOUS", rendezvous);
                key.iter().for_each(|key| {
                    command.env("PHALANX_KEY", key);
                });
                command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
            })
            .collect();
        let mut found: Vec<_> =
            children.into_iter().flat_map(|child| lines(&child.wait_with_output().unwrap())).collect();
        found.sort();
        assert_world(&found, 2);
    }
}

#[test]
fn through_hydras_service_between_hosts() {
    let Some(hosts) = Hosts::new("p") else { return };
    let launcher = "mpiexec.hydra -launcher ssh -launcher-exec SHELL -hosts 10.78.0.1:2,10.78.0.2:2 -np 4";
    if installed("mpiexec.hydra") {
        assert_world(&lines(&hosts.command(0, launcher).output().unwrap()), 4);
    }
}

#[test]
fn through_open_mpis_service_between_hosts() {
    let Some(hosts) = Hosts::new("x") else { return };
    let launcher = "mpirun.openmpi --mca plm_rsh_agent SHELL --host 10.78.0.1:2,10.78.0.2:2 -np 4";
    if installed("mpirun.openmpi") {
        assert_world(&lines(&hosts.command(0, launcher).output().unwrap()), 4);
    }
}

fn installed(launcher: &str) -> bool {
    let is_there = Command::new(launcher).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !is_there {
        eprintln!("not tested: {launcher} is not installed");
    }
    is_there
}
