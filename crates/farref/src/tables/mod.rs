//! What a worker keeps, each table behind its own lock: who is called what, what is under way to each peer,
//! which references the program holds. None of them knows the worker that it belongs to.

pub(crate) mod answer_budget;
pub(crate) mod extensions;
pub(crate) mod flow_control;
pub(crate) mod holds;
pub(crate) mod labels;
pub(crate) mod names;
pub(crate) mod place;
pub(crate) mod published;
pub(crate) mod rejections;
pub(crate) mod served;
pub(crate) mod watchers;
