//! `farref`'s `runtime`, as far as scenarios need it.

pub(crate) mod core {
    //! In the place of `farref`'s module of this name.

    /// What a call is answered with: a number here.
    pub(crate) type Reply = u64;
}

#[path = "../../../../crates/farref/src/runtime/reply.rs"]
pub(crate) mod reply;
