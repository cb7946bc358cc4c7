//! The Python with PyTorch that unit tests compare with.

use std::process::Command;
use std::sync::OnceLock;

use farref_testkit::Requirement;

const TORCH: Requirement = Requirement {
    needed: "a Python with torch (Debian: python3-torch; or let FARREF_TORCH_PYTHON name one)",
    variable: "FARREF_REQUIRE_TORCH",
};

/// The interpreter.
pub(crate) fn interpreter() -> String {
    std::env::var("FARREF_TORCH_PYTHON").unwrap_or_else(|_| "python3".to_owned())
}

/// The version of its PyTorch. Without one, tests are left out, or fail if it is required.
pub(crate) fn version() -> Option<&'static str> {
    // An import takes seconds.
    static VERSION: OnceLock<Option<String>> = OnceLock::new();
    let version = VERSION.get_or_init(|| {
        let script = "import torch.distributed.rpc; print(torch.__version__)";
        let asked = Command::new(interpreter()).args(["-c", script]).output();
        let asked = asked.ok().filter(|asked| asked.status.success())?;
        String::from_utf8(asked.stdout).ok()
    });
    let missing = format!("{} cannot import torch.distributed.rpc", interpreter());
    let missing = version.is_none().then_some(&missing[..]);
    TORCH.is_met(missing).expect("PyTorch");
    version.as_deref()
}
