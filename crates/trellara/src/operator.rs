//! Who runs this command, as far as the machine knows it.

/// A person and a machine, for records that outlive the command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Operator {
    /// The user's name; who became root by sudo keeps their own.
    pub(crate) name: String,
    /// The machine's.
    pub(crate) host: String,
}

impl Operator {
    /// Of this process.
    pub(crate) fn here() -> Self {
        use nix::unistd::{User, getuid};
        let uid = getuid();
        let user = User::from_uid(uid).ok().flatten();
        let user = user.map_or_else(|| uid.to_string(), |user| user.name);
        let before_sudo = std::env::var("SUDO_USER").ok();
        let host = nix::sys::utsname::uname().ok();
        let host = host.map(|host| host.nodename().to_string_lossy().into_owned());
        Self {
            name: before_sudo
                .filter(|name| uid.is_root() && !name.is_empty())
                .unwrap_or(user),
            host: host.unwrap_or_default(),
        }
    }
}
