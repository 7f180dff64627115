// A session for a member of a team, or for another device.
#pragma once

#include <functional>

#include "engine/runtime/team.h"
#include "models/run.h"
#include "multihead/kv_cache.h"
#include "multihead/models.h"

// The members of a Session that are hidden from the public header.
struct multihead::models::Session::Internals {
  // What another device does for a session: it makes caches, which count tokens and are contiguous,
  // and computes each pass to the logits of its only token.
  struct Elsewhere {
    std::function<Status(const KVCacheConfig&, KVCache&)> make_cache;
    std::function<Status(const Pass&)> compute;
  };
  // Does what Session::create() does. With a team, the caches store only this member's key/value
  // heads, and the session runs in calls of this team alone.
  static Status create(const Model& model, const SessionOptions& options, const engine::Team* team,
                       Session& session, const Elsewhere& elsewhere = {});
  // Gives a session of the same model the encoded source of another one, with its keys and values.
  static void share_source(const Session& from, Session& to);
};
