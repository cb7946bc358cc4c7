//! The types of PyTorch's messages, with the numbers they have on the wire.

use super::error::RpcError;

const REQUEST: i32 = 0x100;

macro_rules! kinds {
    ($($kind:ident = $code:literal, $name:literal;)*) => {
        /// What a message is. Requests are answered, one for one; everything else is an answer.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub(crate) enum Kind {
            $($kind,)*
        }

        impl Kind {
            #[cfg(any(test, feature = "fuzzing"))]
            /// All there are.
            pub(crate) const ALL: &'static [Self] = &[$(Self::$kind,)*];

            /// The number on the wire.
            pub(crate) const fn code(self) -> i32 {
                match self {
                    $(Self::$kind => $code,)*
                }
            }

            /// The type with that number on the wire.
            pub(crate) const fn from_code(code: i32) -> Result<Self, RpcError> {
                match code {
                    $($code => Ok(Self::$kind),)*
                    other => Err(RpcError::Kind(other as i64)),
                }
            }

            /// What PyTorch calls it.
            pub(crate) const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }
        }
    };
}

kinds! {
    ScriptCall = 0x100, "SCRIPT_CALL";
    ScriptRet = 0x201, "SCRIPT_RET";
    PythonCall = 0x102, "PYTHON_CALL";
    PythonRet = 0x203, "PYTHON_RET";
    ScriptRemoteCall = 0x104, "SCRIPT_REMOTE_CALL";
    PythonRemoteCall = 0x105, "PYTHON_REMOTE_CALL";
    RemoteRet = 0x206, "REMOTE_RET";
    ScriptFetch = 0x107, "SCRIPT_RREF_FETCH_CALL";
    PythonFetch = 0x108, "PYTHON_RREF_FETCH_CALL";
    ScriptFetchRet = 0x209, "SCRIPT_RREF_FETCH_RET";
    PythonFetchRet = 0x20a, "PYTHON_RREF_FETCH_RET";
    UserDelete = 0x10b, "RREF_USER_DELETE";
    ForkRequest = 0x10c, "RREF_FORK_REQUEST";
    ChildAccept = 0x10d, "RREF_CHILD_ACCEPT";
    Ack = 0x20e, "RREF_ACK";
    ForwardRequest = 0x10f, "FORWARD_AUTOGRAD_REQ";
    ForwardResponse = 0x210, "FORWARD_AUTOGRAD_RESP";
    Backward = 0x111, "BACKWARD_AUTOGRAD_REQ";
    BackwardDone = 0x212, "BACKWARD_AUTOGRAD_RESP";
    Cleanup = 0x113, "CLEANUP_AUTOGRAD_CONTEXT_REQ";
    CleanupDone = 0x214, "CLEANUP_AUTOGRAD_CONTEXT_RESP";
    ProfiledRequest = 0x115, "RUN_WITH_PROFILING_REQ";
    ProfiledResponse = 0x216, "RUN_WITH_PROFILING_RESP";
    RRefBackward = 0x117, "RREF_BACKWARD_REQ";
    RRefBackwardDone = 0x218, "RREF_BACKWARD_RESP";
    Exception = 0x237, "EXCEPTION";
}

impl Kind {
    /// Whether the sender waits for an answer.
    pub(crate) const fn is_request(self) -> bool {
        self.code() & REQUEST != 0
    }

    /// The type whose number was found inside a message.
    pub(super) fn from_field(code: i64) -> Result<Self, RpcError> {
        match i32::try_from(code) {
            Ok(code) => Self::from_code(code),
            Err(_) => Err(RpcError::Kind(code)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_found_by_its_number_and_no_other_number_is_a_type() {
        for kind in Kind::ALL {
            assert_eq!(Kind::from_code(kind.code()), Ok(*kind));
            assert_eq!(Kind::from_field(kind.code().into()), Ok(*kind));
        }
        let known = (-1..0x1000).filter(|code| Kind::from_code(*code).is_ok());
        assert_eq!(known.count(), Kind::ALL.len());
        let beyond = i64::from(Kind::Ack.code()) + (1 << 32);
        assert_eq!(Kind::from_field(beyond), Err(RpcError::Kind(beyond)));
    }

    #[test]
    fn a_type_is_a_request_or_an_answer() {
        for kind in Kind::ALL {
            assert_ne!(
                kind.code() & 0x100 != 0,
                kind.code() & 0x200 != 0,
                "{}",
                kind.name()
            );
            assert_eq!(kind.is_request(), kind.code() & 0x100 != 0);
        }
    }
}
