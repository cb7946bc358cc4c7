//! Systems on which no process reads another one's memory: tensors travel over connections only.

use bytes::BufMut;
use tokio::net::TcpStream;

use super::PipeError;
use crate::pipe::MemoryDescriptor;

/// Nobody to exchange tensors with through memory.
pub(crate) fn cma_domain(_: bool) -> Option<&'static str> {
    None
}

/// There is none.
#[derive(Debug)]
pub(super) enum PeerProcess {}

impl PeerProcess {
    pub(super) async fn is_same_user(_: &TcpStream) -> bool {
        false
    }

    pub(super) fn behind(_: &TcpStream) -> Option<Self> {
        None
    }

    pub(super) fn is_known(&self) -> bool {
        match *self {}
    }

    pub(super) fn is_connected(_: &TcpStream) -> bool {
        true
    }

    pub(super) fn read(
        &mut self,
        _: MemoryDescriptor,
        _: usize,
        _: &mut impl BufMut,
    ) -> Result<(), PipeError> {
        match *self {}
    }
}
