//! The store that a worker hosts for its group, from the start or in the place of a host that is gone.
//!
//! In a group without ranks the first worker on the store's host keeps the store. When it goes, another
//! member on that host takes the store's address, and all write into the new store what they know (S3).
//!
//! # Invariants
//!
//! - **SH-1** Nothing is hosted any more once the store was closed: the port is free.

use std::sync::{Mutex, MutexGuard};

use crate::rendezvous::{Directory, StoreServer, host_store};
use crate::support::lock::lock;

/// The store that a worker hosts, if it does.
#[derive(Debug)]
pub(super) struct HostedStore {
    /// Host and port of the store, if this worker may take it over.
    place: Option<(String, u16)>,
    server: Mutex<Server>,
    /// The way to the store, to say goodbye.
    directory: Mutex<Option<Directory>>,
}

#[derive(Debug)]
enum Server {
    Elsewhere,
    Here(StoreServer),
    Closed,
}

impl HostedStore {
    /// The store that this worker has opened, if it has. `place` is where it may take over from another.
    pub(super) fn new(
        server: Option<StoreServer>,
        place: Option<(String, u16)>,
        directory: Option<Directory>,
    ) -> Self {
        let server = server.map_or(Server::Elsewhere, Server::Here);
        Self {
            place,
            server: Mutex::new(server),
            directory: Mutex::new(directory),
        }
    }

    /// Hosts the store if nobody does.
    pub(super) async fn take_over(&self) {
        let Some((host, port)) = &self.place else {
            return;
        };
        if !matches!(*self.server(), Server::Elsewhere) {
            return;
        }
        let server = match host_store(host, *port).await {
            Ok(server) => server,
            Err(error) => {
                tracing::debug!(%error, "the store is not taken over");
                return;
            }
        };
        {
            let mut current = self.server();
            if matches!(*current, Server::Elsewhere) {
                tracing::info!(%host, port, "this worker hosts the group's store from now on");
                *current = Server::Here(server);
                return;
            }
        }
        // SH-1
        server.close().await;
    }

    /// Says goodbye, but hosts on: a store that notices when its users go need not wait to notice this.
    pub(super) async fn leave(&self) {
        if let Some(directory) = self.directory() {
            directory.leave().await;
        }
    }

    /// Says no goodbye any more: the program, whose store it is, may use it again.
    pub(super) fn keep(&self) {
        lock(&self.directory).take();
    }

    /// To whom goodbye is to be said.
    pub(super) fn directory(&self) -> Option<Directory> {
        lock(&self.directory).clone()
    }

    /// Ends the store, and waits until its port is free: the worker may be started again at once (S4).
    pub(super) async fn close(&self) {
        self.leave().await;
        let server = std::mem::replace(&mut *self.server(), Server::Closed);
        if let Server::Here(server) = server {
            server.close().await;
        }
    }

    fn server(&self) -> MutexGuard<'_, Server> {
        lock(&self.server)
    }
}
