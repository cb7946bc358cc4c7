//! Looking into running workers from outside of their group.
//!
//! An [`Observer`] joins nothing and changes nothing: it connects to workers, proves that it knows the
//! group's token, and is shown [`Snapshot`](crate::Snapshot)s. `farref inspect` and `farref top` are made of this.
//!
//! ```
//! use farref::observe::Observer;
//! use farref::{StoreServer, Worker};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = StoreServer::bind("127.0.0.1:0").await?;
//! let place = store.local_addr().to_string();
//! let me = Worker::builder("alone")
//!     .rendezvous(&format!("tcp://{place}"))
//!     .store_is_hosted_elsewhere()
//!     .join()
//!     .await?;
//! let kept = me.rref("some text".to_owned())?;
//!
//! // In another process, mostly. All that it has to know is where the workers meet.
//! let mut group = Observer::new().group(&place).await?;
//! let sightings = group.look().await;
//! let snapshot = sightings[0].snapshot.as_ref().expect("it is there");
//! assert_eq!(snapshot.worker, "alone");
//! assert_eq!(snapshot.references.len(), 1);
//! # drop(kept);
//! # me.shutdown().await?;
//! # Ok(())
//! # }
//! ```

mod address;
mod error;
mod group;
mod observer;

pub use error::ObserveError;
pub use group::{GroupView, Sighting};
pub use observer::Observer;
