//! What receivers call their sockets: others are not connected to, whoever names them, and not swept away. It
//! must not know folders.

/// Of a socket.
pub(crate) fn socket_name(number: u64) -> String {
    format!("kv-{number:016x}.sock")
}

/// Whether [`socket_name`] makes such names.
pub(crate) fn is_socket_name(name: &str) -> bool {
    let number = name
        .strip_prefix("kv-")
        .and_then(|rest| rest.strip_suffix(".sock"));
    number.is_some_and(|digits| {
        digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}
