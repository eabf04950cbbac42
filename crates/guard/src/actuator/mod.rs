//! What is done about it: plan, apply, restore.
