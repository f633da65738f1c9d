//! What devices say, in words.

use std::ffi::c_uint;

/// A completion's status by name, with what it usually means.
pub fn status_in_words(status: u32) -> &'static str {
    match status {
        0 => "IBV_WC_SUCCESS",
        1 => "IBV_WC_LOC_LEN_ERR: a message was longer than its place",
        2 => "IBV_WC_LOC_QP_OP_ERR: the queue pair refused the request",
        4 => "IBV_WC_LOC_PROT_ERR: memory of this side is not registered",
        5 => "IBV_WC_WR_FLUSH_ERR: the queue pair had failed before",
        7 => "IBV_WC_BAD_RESP_ERR: the peer's adapter answered something else than expected",
        8 => "IBV_WC_LOC_ACCESS_ERR: the peer wrote where nothing may be written",
        9 => {
            "IBV_WC_REM_INV_REQ_ERR: the peer's adapter took the request for invalid; is the MTU the same on the whole way?"
        }
        10 => "IBV_WC_REM_ACCESS_ERR: the peer's memory is not registered any more",
        11 => "IBV_WC_REM_OP_ERR: the peer's adapter could not carry it out",
        12 => {
            "IBV_WC_RETRY_EXC_ERR: the peer's adapter does not answer: its process has ended, or the way is cut; if it \
             never worked, look at the GID (PHALANX_RDMA_GID_INDEX), the VLAN and the MTU (PHALANX_RDMA_MTU)"
        }
        13 => "IBV_WC_RNR_RETRY_EXC_ERR: the peer had no receive ready, again and again",
        16 => "IBV_WC_REM_ABORT_ERR: the peer's adapter gave it up",
        19 => "IBV_WC_FATAL_ERR: the adapter failed; dmesg may say why",
        20 => "IBV_WC_RESP_TIMEOUT_ERR: no answer in time",
        21 => "IBV_WC_GENERAL_ERR: the adapter gives no reason",
        _ => "an unusual status; see enum ibv_wc_status in infiniband/verbs.h",
    }
}

const DEVICE_FATAL: c_uint = 8;
const PORT_ACTIVE: c_uint = 9;
const PORT_ERR: c_uint = 10;

/// Keeps what ends links; a port that comes up again ends none.
pub(super) fn note_event(troubles: &mut Vec<(c_uint, u32)>, event: c_uint, port: u32) {
    match event {
        DEVICE_FATAL | PORT_ERR => troubles.push((event, port)),
        PORT_ACTIVE => troubles.retain(|trouble| *trouble != (PORT_ERR, port)),
        _ => {}
    }
}

/// What ends the links of port `ours`, in words.
pub(super) fn trouble_in_words(troubles: &[(c_uint, u32)], device: &str, ours: u8) -> Option<String> {
    troubles.iter().find_map(|&(event, port)| match event {
        DEVICE_FATAL => Some(format!("the RDMA device {device} failed (IBV_EVENT_DEVICE_FATAL); dmesg may say why")),
        _ if port == u32::from(ours) => Some(format!(
            "port {port} of the RDMA device {device} went down (IBV_EVENT_PORT_ERR); look at its cable and switch"
        )),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_have_names() {
        assert!(status_in_words(12).contains("IBV_WC_RETRY_EXC_ERR"));
        assert!(status_in_words(99).contains("verbs.h"));
    }

    #[test]
    fn a_port_ends_its_own_links_until_it_is_up_again() {
        let mut troubles = Vec::new();
        note_event(&mut troubles, PORT_ERR, 1);
        assert!(trouble_in_words(&troubles, "mlx5_0", 1).unwrap().contains("port 1 of the RDMA device mlx5_0"));
        assert_eq!(trouble_in_words(&troubles, "mlx5_0", 2), None);
        note_event(&mut troubles, PORT_ACTIVE, 1);
        assert_eq!(trouble_in_words(&troubles, "mlx5_0", 1), None);
        note_event(&mut troubles, DEVICE_FATAL, 0);
        assert!(trouble_in_words(&troubles, "mlx5_0", 2).unwrap().contains("FATAL"));
    }
}
