// A session for a member of a team.
#pragma once

#include "engine/runtime/team.h"
#include "multihead/models.h"

// The members of a Session that are hidden from the public header.
struct multihead::models::Session::Internals {
  // Does what Session::create() does. With a team, the caches store only this member's key/value
  // heads, and the session runs in calls of this team alone.
  static Status create(const Model& model, const SessionOptions& options, const engine::Team* team,
                       Session& session);
  // Gives a session of the same model the encoded source of another one, with its keys and values.
  static void share_source(const Session& from, Session& to);
};
