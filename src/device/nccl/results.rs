//! NCCL's result codes.

use crate::types::Error;

/// A result of NCCL. A plain number, since a newer library may have more of them.
pub type Code = i32;

/// Done.
pub const SUCCESS: Code = 0;

/// Under way: ask again.
pub const IN_PROGRESS: Code = 7;

/// Names, and what to do.
const RESULTS: &[(Code, &str, &str)] = &[
    (
        1,
        "ncclUnhandledCudaError",
        "a call of CUDA failed within NCCL: set NCCL_DEBUG=WARN and read its lines; a device may be out of memory, or two \
         ranks have the same one",
    ),
    (
        2,
        "ncclSystemError",
        "a call of the system failed within NCCL: set NCCL_DEBUG=WARN; see the limits on locked memory and open files, \
         /dev/shm, and NCCL_SOCKET_IFNAME",
    ),
    (3, "ncclInternalError", "set NCCL_DEBUG=WARN and read its lines; another version of NCCL may do"),
    (4, "ncclInvalidArgument", "please report this with the lines that NCCL_DEBUG=WARN gives"),
    (5, "ncclInvalidUsage", "set NCCL_DEBUG=WARN; two ranks may have been given the same device"),
    (6, "ncclRemoteError", "another rank failed or its network did: look at the output of the others"),
    (IN_PROGRESS, "ncclInProgress", "please report this"),
    (8, "ncclTimeout", "another rank failed or its network did: look at the output of the others"),
];

/// What NCCL calls a code.
pub fn name(code: Code) -> &'static str {
    RESULTS.iter().find(|(known, ..)| *known == code).map_or("an unknown result", |(_, name, _)| name)
}

/// A call that failed. `words` is what the library says of its last error.
pub(super) fn error(call: &str, code: Code, words: &str) -> Error {
    let hint = RESULTS.iter().find(|(known, ..)| *known == code).map_or("see NCCL's list of results", |known| known.2);
    let words = words.trim();
    let words = if words.is_empty() { String::new() } else { format!(": {words}") };
    Error::environment(format_args!("{call} failed with {}, code {code}{words}", name(code)), hint)
}
