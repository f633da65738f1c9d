//! The C types and functions of libibverbs, as far as they are used. A test compares every layout with the C header.

#![allow(non_camel_case_types, missing_docs)]

use std::ffi::{c_char, c_int, c_uint, c_void};

/// An opaque device.
#[repr(C)]
pub struct ibv_device {
    _private: [u8; 0],
}

/// Functions that the header calls through this table, because they are the ones that matter for speed.
#[repr(C)]
pub struct ibv_context_ops {
    _before_poll: [*mut c_void; 11],
    pub poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    _before_send: [*mut c_void; 12],
    pub post_send: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    pub post_recv: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    _rest: [*mut c_void; 5],
}

/// The beginning of a context: what follows is the library's.
#[repr(C)]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
}

#[repr(C)]
pub struct ibv_pd {
    pub context: *mut ibv_context,
    pub handle: u32,
}

#[repr(C)]
pub struct ibv_mr {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

#[repr(C)]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    pub fd: c_int,
    pub refcnt: c_int,
}

/// The beginning of a completion queue.
#[repr(C)]
pub struct ibv_cq {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
}

/// The beginning of a queue pair.
#[repr(C)]
pub struct ibv_qp {
    pub context: *mut ibv_context,
    pub qp_context: *mut c_void,
    pub pd: *mut ibv_pd,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut c_void,
    pub handle: u32,
    pub qp_num: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_qp_cap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

#[repr(C)]
pub struct ibv_qp_init_attr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut c_void,
    pub cap: ibv_qp_cap,
    pub qp_type: c_uint,
    pub sq_sig_all: c_int,
}

/// A global identifier. The header has it as a union with two big-endian numbers, which gives it their alignment.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct ibv_gid {
    pub raw: [u8; 16],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_global_route {
    pub dgid: ibv_gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_ah_attr {
    pub grh: ibv_global_route,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

#[repr(C)]
pub struct ibv_qp_attr {
    pub qp_state: c_uint,
    pub cur_qp_state: c_uint,
    pub path_mtu: c_uint,
    pub path_mig_state: c_uint,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: ibv_qp_cap,
    pub ah_attr: ibv_ah_attr,
    pub alt_ah_attr: ibv_ah_attr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

#[repr(C)]
pub struct ibv_sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// A send request, with the member for remote memory of its unions.
#[repr(C)]
pub struct ibv_send_wr {
    pub wr_id: u64,
    pub next: *mut ibv_send_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
    pub opcode: c_uint,
    pub send_flags: c_uint,
    pub imm_data: u32,
    pub remote_addr: u64,
    pub rkey: u32,
    pub _rest: [u64; 9],
}

#[repr(C)]
pub struct ibv_recv_wr {
    pub wr_id: u64,
    pub next: *mut ibv_recv_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_wc {
    pub wr_id: u64,
    pub status: c_uint,
    pub opcode: c_uint,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_port_attr {
    pub state: c_uint,
    pub max_mtu: c_uint,
    pub active_mtu: c_uint,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

/// An event of a device, with the number of a port for what it is about.
#[repr(C)]
pub struct ibv_async_event {
    pub element: u64,
    pub event_type: c_uint,
}

pub const IBV_QPT_RC: c_uint = 2;
pub const IBV_QPS_INIT: c_uint = 1;
pub const IBV_QPS_RTR: c_uint = 2;
pub const IBV_QPS_RTS: c_uint = 3;
pub const IBV_PORT_ACTIVE: c_uint = 4;
pub const IBV_LINK_LAYER_ETHERNET: u8 = 2;
pub const IBV_ACCESS_LOCAL_WRITE: c_int = 1;
pub const IBV_ACCESS_REMOTE_WRITE: c_int = 2;
pub const IBV_WR_RDMA_WRITE_WITH_IMM: c_uint = 1;
pub const IBV_WR_SEND_WITH_IMM: c_uint = 3;
pub const IBV_SEND_SIGNALED: c_uint = 2;
pub const IBV_SEND_INLINE: c_uint = 8;
pub const IBV_WC_SUCCESS: c_uint = 0;
pub const IBV_WC_RECV_RDMA_WITH_IMM: c_uint = 129;

/// Which fields of `ibv_qp_attr` hold.
pub mod mask {
    use std::ffi::c_int;

    pub const STATE: c_int = 1;
    pub const ACCESS_FLAGS: c_int = 1 << 3;
    pub const PKEY_INDEX: c_int = 1 << 4;
    pub const PORT: c_int = 1 << 5;
    pub const AV: c_int = 1 << 7;
    pub const PATH_MTU: c_int = 1 << 8;
    pub const TIMEOUT: c_int = 1 << 9;
    pub const RETRY_CNT: c_int = 1 << 10;
    pub const RNR_RETRY: c_int = 1 << 11;
    pub const RQ_PSN: c_int = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: c_int = 1 << 13;
    pub const MIN_RNR_TIMER: c_int = 1 << 15;
    pub const SQ_PSN: c_int = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
    pub const DEST_QPN: c_int = 1 << 20;
}

macro_rules! functions {
    ($($name:ident: $symbol:literal = fn($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions of the library that are called by name.
        pub struct Functions {
            $(pub $name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Functions {
            /// Looks every one up.
            ///
            /// # Errors
            ///
            /// Names the first that the library does not have.
            pub fn find(library: &libloading::Library) -> Result<Self, String> {
                Ok(Self { $(
                    $name: {
                        // SAFETY: the library's header gives the function of this name this type.
                        let found = unsafe {
                            library.get::<unsafe extern "C" fn($($argument),*) -> $result>($symbol.to_bytes_with_nul())
                        };
                        *found.map_err(|_| format!("libibverbs has no {}; install rdma-core 17 or later", $symbol.to_string_lossy()))?
                    },
                )* })
            }
        }
    };
}

functions! {
    get_device_list: c"ibv_get_device_list" = fn(*mut c_int) -> *mut *mut ibv_device;
    free_device_list: c"ibv_free_device_list" = fn(*mut *mut ibv_device) -> ();
    get_device_name: c"ibv_get_device_name" = fn(*mut ibv_device) -> *const c_char;
    open_device: c"ibv_open_device" = fn(*mut ibv_device) -> *mut ibv_context;
    close_device: c"ibv_close_device" = fn(*mut ibv_context) -> c_int;
    query_port: c"ibv_query_port" = fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    alloc_pd: c"ibv_alloc_pd" = fn(*mut ibv_context) -> *mut ibv_pd;
    dealloc_pd: c"ibv_dealloc_pd" = fn(*mut ibv_pd) -> c_int;
    reg_mr: c"ibv_reg_mr" = fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    dereg_mr: c"ibv_dereg_mr" = fn(*mut ibv_mr) -> c_int;
    create_comp_channel: c"ibv_create_comp_channel" = fn(*mut ibv_context) -> *mut ibv_comp_channel;
    destroy_comp_channel: c"ibv_destroy_comp_channel" = fn(*mut ibv_comp_channel) -> c_int;
    create_cq: c"ibv_create_cq" = fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    destroy_cq: c"ibv_destroy_cq" = fn(*mut ibv_cq) -> c_int;
    get_cq_event: c"ibv_get_cq_event" = fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ack_cq_events: c"ibv_ack_cq_events" = fn(*mut ibv_cq, c_uint) -> ();
    create_qp: c"ibv_create_qp" = fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    modify_qp: c"ibv_modify_qp" = fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    destroy_qp: c"ibv_destroy_qp" = fn(*mut ibv_qp) -> c_int;
    get_async_event: c"ibv_get_async_event" = fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
    ack_async_event: c"ibv_ack_async_event" = fn(*mut ibv_async_event) -> ();
    fork_init: c"ibv_fork_init" = fn() -> c_int;
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::mem::offset_of;
    use std::process::Command;

    use super::*;

    macro_rules! layouts {
        ($text:ident; $($name:ident { $($field:ident $(= $c:literal)?),* } $($exact:ident)?;)*) => {$(
            $(
                #[allow(unused_mut, unused_assignments)]
                let mut c = stringify!($field);
                $(c = $c;)?
                let at = offset_of!($name, $field);
                writeln!($text, "_Static_assert(offsetof(struct {0}, {c}) == {at}, \"{0}.{c}\");", stringify!($name))
                    .unwrap();
            )*
            $(
                let _ = stringify!($exact);
                let bytes = size_of::<$name>();
                writeln!($text, "_Static_assert(sizeof(struct {0}) == {bytes}, \"{0}\");", stringify!($name)).unwrap();
            )?
        )*};
    }

    /// The C compiler holds the header of the machine against the offsets that Rust gave to the fields.
    #[test]
    fn every_layout_is_that_of_the_header() {
        const HEADER: &str = "/usr/include/infiniband/verbs.h";
        if !std::path::Path::new(HEADER).exists() {
            println!("skipped: {HEADER} is not there; Debian's package libibverbs-dev has it");
            return;
        }
        let mut text = String::from("#include <stddef.h>\n#include <infiniband/verbs.h>\n#undef ibv_query_port\n");
        layouts! { text;
            ibv_context_ops { poll_cq, req_notify_cq, post_send, post_recv } exact;
            ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors };
            ibv_pd { context, handle } exact;
            ibv_mr { context, pd, addr, length, handle, lkey, rkey } exact;
            ibv_comp_channel { context, fd, refcnt } exact;
            ibv_cq { context, channel, cq_context, handle, cqe };
            ibv_qp { context, pd, send_cq, recv_cq, srq, handle, qp_num };
            ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } exact;
            ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all } exact;
            ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class } exact;
            ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num } exact;
            ibv_qp_attr {
                qp_state, path_mtu, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap, ah_attr, alt_ah_attr,
                pkey_index, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry,
                rate_limit
            } exact;
            ibv_sge { addr, length, lkey } exact;
            ibv_send_wr {
                wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data,
                remote_addr = "wr.rdma.remote_addr", rkey = "wr.rdma.rkey"
            } exact;
            ibv_recv_wr { wr_id, next, sg_list, num_sge } exact;
            ibv_wc { wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, wc_flags } exact;
            ibv_port_attr { state, active_mtu, gid_tbl_len, lid, sm_lid, link_layer, flags, port_cap_flags2 } exact;
            ibv_async_event { element, event_type } exact;
        }
        let values = [
            ("IBV_QPT_RC", IBV_QPT_RC),
            ("IBV_QPS_INIT", IBV_QPS_INIT),
            ("IBV_QPS_RTR", IBV_QPS_RTR),
            ("IBV_QPS_RTS", IBV_QPS_RTS),
            ("IBV_PORT_ACTIVE", IBV_PORT_ACTIVE),
            ("IBV_LINK_LAYER_ETHERNET", IBV_LINK_LAYER_ETHERNET.into()),
            ("IBV_ACCESS_LOCAL_WRITE", IBV_ACCESS_LOCAL_WRITE as u32),
            ("IBV_ACCESS_REMOTE_WRITE", IBV_ACCESS_REMOTE_WRITE as u32),
            ("IBV_WR_RDMA_WRITE_WITH_IMM", IBV_WR_RDMA_WRITE_WITH_IMM),
            ("IBV_WR_SEND_WITH_IMM", IBV_WR_SEND_WITH_IMM),
            ("IBV_SEND_SIGNALED", IBV_SEND_SIGNALED),
            ("IBV_SEND_INLINE", IBV_SEND_INLINE),
            ("IBV_WC_SUCCESS", IBV_WC_SUCCESS),
            ("IBV_WC_RECV_RDMA_WITH_IMM", IBV_WC_RECV_RDMA_WITH_IMM),
            ("IBV_QP_STATE", mask::STATE as u32),
            ("IBV_QP_ACCESS_FLAGS", mask::ACCESS_FLAGS as u32),
            ("IBV_QP_PKEY_INDEX", mask::PKEY_INDEX as u32),
            ("IBV_QP_PORT", mask::PORT as u32),
            ("IBV_QP_AV", mask::AV as u32),
            ("IBV_QP_PATH_MTU", mask::PATH_MTU as u32),
            ("IBV_QP_TIMEOUT", mask::TIMEOUT as u32),
            ("IBV_QP_RETRY_CNT", mask::RETRY_CNT as u32),
            ("IBV_QP_RNR_RETRY", mask::RNR_RETRY as u32),
            ("IBV_QP_RQ_PSN", mask::RQ_PSN as u32),
            ("IBV_QP_MAX_QP_RD_ATOMIC", mask::MAX_QP_RD_ATOMIC as u32),
            ("IBV_QP_MIN_RNR_TIMER", mask::MIN_RNR_TIMER as u32),
            ("IBV_QP_SQ_PSN", mask::SQ_PSN as u32),
            ("IBV_QP_MAX_DEST_RD_ATOMIC", mask::MAX_DEST_RD_ATOMIC as u32),
            ("IBV_QP_DEST_QPN", mask::DEST_QPN as u32),
        ];
        for (name, value) in values {
            writeln!(text, "_Static_assert({name} == {value}, \"{name}\");").unwrap();
        }
        text.push_str("int main(void) { return 0; }\n");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("layout.c");
        std::fs::write(&path, text).unwrap();
        let output =
            Command::new("cc").args(["-std=gnu11", "-fsyntax-only"]).arg(&path).output().expect("a C compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
