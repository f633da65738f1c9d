//! Reading the memory of other processes where it is.

use serde::Serialize;

use super::files::Files;
use super::{Finding, State};
use crate::bootstrap::Config;
use crate::sys::siblings;

/// Whether the ranks of a host can read each other's memory where it is (`process_vm_readv`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SingleCopy {
    /// Whether it may be used: `PHALANX_SINGLE_COPY`.
    pub allowed: bool,
    /// Whether it works between two processes that one has started; tried.
    pub works: bool,
    /// Why not.
    pub error: Option<String>,
    /// The kernel's policy of who may read whom (Yama): 0 any process of the same user, 1 those that started it, 2 an
    /// administrator's, 3 none; none if the kernel has no such policy.
    pub ptrace_scope: Option<u32>,
    /// Whether a filter of system calls (seccomp) is on, as in containers.
    pub filtered: bool,
}

impl SingleCopy {
    pub(super) fn look(files: &Files, config: Option<&Config>) -> Self {
        let tried = siblings::may_read_each_other();
        Self {
            allowed: config.map(|config| &config.settings).cloned().unwrap_or_default().single_copy,
            works: tried.is_ok(),
            error: tried.err().map(|error| error.to_string()),
            ptrace_scope: files.number("/proc/sys/kernel/yama/ptrace_scope"),
            filtered: files.field("/proc/self/status", "Seccomp").is_some_and(|mode| mode != "0"),
        }
    }

    pub(super) fn judge(&self) -> Vec<Finding> {
        const NAME: &str = "single copy";
        const INSTEAD: &str = "large alltoall, scatter and allgather copy twice, through shared memory";
        let Some(error) = &self.error else {
            return vec![match self.allowed {
                true => Finding::ok("memory", NAME, "a rank reads another's memory (process_vm_readv); tried"),
                false => {
                    let text = format!("would work (process_vm_readv), but PHALANX_SINGLE_COPY=0: {INSTEAD}");
                    Finding::ok("memory", NAME, text)
                }
            }];
        };
        let text = format!("no rank can read another's memory (process_vm_readv: {error}): {INSTEAD}");
        if !self.allowed {
            return vec![Finding::new("memory", NAME, State::Ok, format!("{text}; PHALANX_SINGLE_COPY=0"))];
        }
        let advice = match self.ptrace_scope {
            Some(scope @ 3..) => format!("kernel.yama.ptrace_scope is {scope}, which stays until the machine restarts"),
            Some(scope @ 2) => format!(
                "kernel.yama.ptrace_scope is {scope}: `sysctl kernel.yama.ptrace_scope=1` as root lets the ranks of one \
                 launcher read each other"
            ),
            _ if self.filtered => "a filter of system calls (seccomp) is on: docker run --cap-add=SYS_PTRACE, or in \
                                   Kubernetes securityContext.capabilities.add: [SYS_PTRACE]"
                .into(),
            _ => "let the sandbox allow process_vm_readv, and the kernel have CONFIG_CROSS_MEMORY_ATTACH".into(),
        };
        vec![Finding::note("memory", NAME, text, format!("{advice}; PHALANX_SINGLE_COPY=0 does not try"))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(ptrace_scope: Option<u32>, filtered: bool) -> SingleCopy {
        let error = Some("Operation not permitted (os error 1)".into());
        SingleCopy { allowed: true, works: false, error, ptrace_scope, filtered }
    }

    #[test]
    fn advice_is_for_what_forbids_it() {
        let advice = |seen: &SingleCopy| {
            let finding = seen.judge().remove(0);
            assert_eq!(finding.state, State::Note);
            assert!(finding.text.contains("not permitted") && finding.text.contains("copy twice"), "{}", finding.text);
            finding.advice.expect("advice")
        };
        assert!(advice(&refused(Some(3), true)).contains("restarts"));
        assert!(advice(&refused(Some(2), false)).contains("sysctl kernel.yama.ptrace_scope=1"));
        assert!(advice(&refused(Some(1), true)).contains("--cap-add=SYS_PTRACE"));
        assert!(advice(&refused(None, true)).contains("--cap-add=SYS_PTRACE"));
        assert!(advice(&refused(None, false)).contains("CONFIG_CROSS_MEMORY_ATTACH"));
        assert!(advice(&refused(None, false)).contains("PHALANX_SINGLE_COPY=0"));
    }

    #[test]
    fn what_is_not_wanted_is_not_missed() {
        let judged = |seen: &SingleCopy| {
            let finding = seen.judge().remove(0);
            assert_eq!((finding.state, finding.advice), (State::Ok, None));
            finding.text
        };
        let works = SingleCopy { works: true, error: None, ..refused(Some(1), false) };
        assert!(judged(&works).contains("tried"));
        assert!(judged(&SingleCopy { allowed: false, ..works }).contains("PHALANX_SINGLE_COPY=0"));
        assert!(judged(&SingleCopy { allowed: false, ..refused(Some(2), true) }).contains("PHALANX_SINGLE_COPY=0"));
    }

    #[test]
    fn the_machine_s_policies_are_read() {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in [("proc/sys/kernel/yama/ptrace_scope", "1\n"), ("proc/self/status", "Seccomp:\t2\n")] {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let files = Files::under(dir.path());
        let config = Config::from_variables(&[("PHALANX_SINGLE_COPY", "0")].into_iter().collect()).unwrap();
        let seen = SingleCopy::look(&files, Some(&config));
        assert_eq!((seen.allowed, seen.ptrace_scope, seen.filtered), (false, Some(1), true));
        assert_eq!(seen.works, seen.error.is_none());
        assert!(SingleCopy::look(&files, None).allowed);
    }
}
