-- refold: a journal of threads in PostgreSQL 14 or newer.
--
-- A thread is an append-only log of events, numbered 1, 2, 3 ... without a gap. `threads` holds one
-- mutable row for each: where its log stands, who may write it, and what became of it. `events` holds
-- the logs and is only ever inserted into. `inbox` holds messages from outside until a thread's holder
-- takes them into its log.
--
-- What holds, and what keeps it:
--   One writer      Every change of holder raises the fence; an append must name the current one.
--   One history     An append names the head and its hash: it is a compare-and-set on all that came before.
--   Own retries     An append that finds its own events in place says so; sending it again is always safe.
--   Immutable       The application's role may only call functions and read; triggers stop accidents of
--                   those who may do more; the hash chain, computed by the writers, shows the rest.
--   One clock       refold.now() alone decides when a lease has expired; no clock decides an order.
--   One order       Within a thread seq; across threads (xid, thread, seq) below every open transaction.
--
-- Hot functions take the thread first, so that poolers and sharding proxies can route by it; each call is
-- one transaction, and nothing relies on the session. Their answers are data: no outcome an application
-- must expect is an exception. The SQLSTATEs of our own:
--   RF001  a change of something immutable
--   RF002  an append from a transaction older than the thread's head
--
-- The file runs whole in one transaction (psql -1 -f schema.sql); the library does so by itself.

do $$
begin
  if not exists (select from pg_catalog.pg_namespace where nspname = 'refold') then
    create schema refold;
  end if;
end $$;


-- Which schema this is, which database, and on which server its transaction ids were handed out. One row, written
-- at the end of this file.
create table refold.meta (
  schema_version     integer     not null,
  database_id        uuid        not null default gen_random_uuid(),
  system_identifier  bigint      not null,
  installed_at       timestamptz not null default clock_timestamp()
);


-- ---------------------------------------------------------------------------------------------- clocks

-- The one clock that decides about leases. now() would stand still through a long wait for a lock.
create function refold.now() returns timestamptz
language sql volatile parallel safe
return clock_timestamp();

-- Times come in as microseconds since the epoch.
create function refold.from_micros(us bigint) returns timestamptz
language sql immutable strict parallel safe
return timestamptz 'epoch' + us * interval '1 microsecond';

-- Transaction ids order the feed, and each server counts its own. After a restore on another server
-- refold.adopt_server() replaces this function, so that new ids stay above all the stored ones.
create function refold.xid_base() returns bigint
language sql immutable parallel safe
return 0::bigint;

create function refold.current_xid() returns bigint
language sql stable parallel unsafe
return pg_current_xact_id()::text::bigint + refold.xid_base();

-- Below this id every transaction has ended, so nothing can appear there any more.
create function refold.settled_xid() returns bigint
language sql stable parallel safe
return pg_snapshot_xmin(pg_current_snapshot())::text::bigint + refold.xid_base();


-- ---------------------------------------------------------------------------------------------- tables

-- What may stand in a column. Domains, since the server reads a table's CHECKs anew for every statement that
-- writes to it, and keeps a domain's at hand: that is a tenth of an append.
create domain refold.thread_id as text collate "C" check (octet_length(value) between 1 and 200);
create domain refold.seq as integer check (value > 0);
create domain refold.head as integer check (value >= 0);
create domain refold.kind as text check (octet_length(value) between 1 and 64);
create domain refold.version as smallint check (value > 0);
create domain refold.digest as bytea check (octet_length(value) = 32);
create domain refold.body as bytea check (octet_length(value) <= 16777216);
create domain refold.state as text collate "C"
  check (value in ('idle', 'running', 'waiting', 'parked', 'finished', 'failed', 'cancelled'));

-- One mutable row for each thread. No index covers a column that every append changes, and pages keep
-- room, so that updates stay in their page. The state is indexed, and changes a few times in a run. What
-- every append changes comes last: the server's own log leaves out what a row and its successor begin with.
create table refold.threads (
  created_at   timestamptz      not null default refold.now(),
  fence        bigint           not null default 0,
  thread       refold.thread_id primary key,
  holder       uuid,
  holder_name  text             not null default '',
  state        refold.state     not null default 'idle',
  sealed       boolean          not null default false,
  wake_at      timestamptz,
  head_xid     bigint           not null default 0,
  lease_until  timestamptz,
  head         refold.head      not null default 0,
  head_hash    bytea            not null default sha256('refold log 1')
) with (fillfactor = 70);

create index threads_by_state on refold.threads (state, created_at, thread);

-- The logs. No foreign key, here and below: only the functions insert, and they have just locked the thread's row;
-- a key would be looked after by a trigger in each append. Columns are ordered by their alignment, so that no row
-- is padded.
create table refold.events (
  xid          bigint           not null,
  recorded_at  timestamptz      not null,
  seq          refold.seq       not null,
  fence        integer          not null,
  version      refold.version   not null,
  id           uuid             not null,
  thread       text             collate "C" not null,
  kind         refold.kind      not null,
  hash         refold.digest    not null,
  body         refold.body      not null,
  primary key (thread, seq) with (fillfactor = 100)
);

-- Both grow at their ends, or at the end of a thread: room left in a page would stay empty.
create index events_by_xid on refold.events (xid) with (fillfactor = 100);

-- Messages to threads. Of several with one key the first stays, and stays for good: what was said once
-- is not taken a second time.
create table refold.inbox (
  thread        text        collate "C" not null,
  id            bigint      not null,
  key           text        collate "C" not null check (octet_length(key) between 1 and 512),
  kind          text        not null check (octet_length(kind) between 1 and 64),
  body          bytea       not null check (octet_length(body) <= 16777216),
  sent_at       timestamptz not null,
  consumed_seq  bigint,
  primary key (thread, id),
  constraint inbox_takes_a_key_once unique (thread, key)
);

create index inbox_waiting on refold.inbox (thread, id) where consumed_seq is null;

-- lz4 is far cheaper than the default on text of this kind, where the server was built with it.
do $$
begin
  alter table refold.events alter column body set compression lz4;
  alter table refold.inbox alter column body set compression lz4;
exception when feature_not_supported then
  null;
end $$;


-- ------------------------------------------------------------------------------------------ appending

-- Every append answers with one word, and all but 'appended' with the thread's head after it: 'conflict 41'. One
-- word, since a row of two columns costs a tenth of an append.
--
-- What became of an append that could not be made: the row is locked first, so that a lost connection's
-- transaction is waited for, and each statement after it sees the final state.
create function refold.classify(p_thread text, p_fence bigint, p_last bigint, p_last_hash bytea) returns text
language plpgsql volatile as $$
declare
  v_row refold.threads;
begin
  select t.* into v_row from refold.threads t where t.thread = p_thread for no key update;
  if not found then
    return 'missing 0';
  -- Before all else: a deposed holder must stop, whatever became of its events.
  elsif v_row.fence <> p_fence or v_row.holder is null then
    return 'fenced ' || v_row.head;
  -- The hash covers ids, bodies and all that came before: one row tells for the whole batch.
  elsif exists (select from refold.events e
                 where e.thread = p_thread and e.seq = p_last and e.hash = p_last_hash) then
    return 'duplicate ' || v_row.head;
  elsif v_row.head_xid >= refold.current_xid() then
    raise exception 'append to thread % from a transaction older than its head', quote_literal(p_thread)
      using errcode = 'RF002';
  end if;
  return 'conflict ' || v_row.head;
end $$;

-- The commonest append: one event. The update is the whole check, made again on the newest row if it had
-- to wait; only when it finds nothing is the reason looked for.
create function refold.append(
  p_thread     text,
  p_expected   bigint,
  p_head_hash  bytea,
  p_fence      bigint,
  p_ttl_s      float8,
  p_state      text,
  p_wake_at    bigint,
  p_id         uuid,
  p_kind       text,
  p_version    smallint,
  p_hash       bytea,
  p_body       bytea)
returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '1s' as $$
declare
  v_now timestamptz := refold.now();
  v_xid bigint := refold.current_xid();
begin
  update refold.threads t
     set head = p_expected + 1, head_hash = p_hash, head_xid = v_xid, state = p_state,
         wake_at = refold.from_micros(p_wake_at),
         lease_until = v_now + p_ttl_s * interval '1 second'
   where t.thread = p_thread and t.head = p_expected and t.head_hash = p_head_hash
     and t.fence = p_fence and t.holder is not null and t.head_xid < v_xid;
  if not found then
    return refold.classify(p_thread, p_fence, p_expected + 1, p_hash);
  end if;
  insert into refold.events (thread, seq, id, kind, version, fence, xid, recorded_at, hash, body)
  values (p_thread, p_expected + 1, p_id, p_kind, p_version, p_fence, v_xid, v_now, p_hash, p_body);
  return 'appended';
end $$;

-- The next common one: a response and the tool it starts. Scalars cost a quarter less than arrays of two.
create function refold.append_pair(
  p_thread        text,
  p_expected      bigint,
  p_head_hash     bytea,
  p_fence         bigint,
  p_ttl_s         float8,
  p_state         text,
  p_wake_at       bigint,
  p_id            uuid,
  p_kind          text,
  p_version       smallint,
  p_hash          bytea,
  p_body          bytea,
  p_next_id       uuid,
  p_next_kind     text,
  p_next_version  smallint,
  p_next_hash     bytea,
  p_next_body     bytea)
returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '1s' as $$
declare
  v_now timestamptz := refold.now();
  v_xid bigint := refold.current_xid();
begin
  update refold.threads t
     set head = p_expected + 2, head_hash = p_next_hash, head_xid = v_xid, state = p_state,
         wake_at = refold.from_micros(p_wake_at),
         lease_until = v_now + p_ttl_s * interval '1 second'
   where t.thread = p_thread and t.head = p_expected and t.head_hash = p_head_hash
     and t.fence = p_fence and t.holder is not null and t.head_xid < v_xid;
  if not found then
    return refold.classify(p_thread, p_fence, p_expected + 2, p_next_hash);
  end if;
  insert into refold.events (thread, seq, id, kind, version, fence, xid, recorded_at, hash, body)
  values (p_thread, p_expected + 1, p_id, p_kind, p_version, p_fence, v_xid, v_now, p_hash, p_body),
         (p_thread, p_expected + 2, p_next_id, p_next_kind, p_next_version, p_fence, v_xid, v_now,
          p_next_hash, p_next_body);
  return 'appended';
end $$;

-- Several events of one thread, and messages they take from the inbox, all or nothing. A message that is
-- not waiting any more makes it a conflict.
create function refold.append_batch(
  p_thread     text,
  p_expected   bigint,
  p_head_hash  bytea,
  p_fence      bigint,
  p_ttl_s      float8,
  p_state      text,
  p_wake_at    bigint,
  p_ids        uuid[],
  p_kinds      text[],
  p_versions   smallint[],
  p_hashes     bytea[],
  p_bodies     bytea[],
  p_consumed   bigint[])
returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '1s' as $$
declare
  v_now timestamptz := refold.now();
  v_xid bigint := refold.current_xid();
  v_last bigint := p_expected + cardinality(p_ids);
  v_last_hash bytea := p_hashes[cardinality(p_hashes)];
begin
  if refold.all_wait(p_thread, p_consumed) then
    update refold.threads t
       set head = v_last, head_hash = v_last_hash, head_xid = v_xid, state = p_state,
           wake_at = refold.from_micros(p_wake_at),
           lease_until = v_now + p_ttl_s * interval '1 second'
     where t.thread = p_thread and t.head = p_expected and t.head_hash = p_head_hash
       and t.fence = p_fence and t.holder is not null and t.head_xid < v_xid;
  end if;
  if not found then
    return refold.classify(p_thread, p_fence, v_last, v_last_hash);
  end if;
  insert into refold.events (thread, seq, id, kind, version, fence, xid, recorded_at, hash, body)
  select p_thread, p_expected + u.i, u.id, u.kind, u.version, p_fence, v_xid, v_now, u.hash, u.body
    from unnest(p_ids, p_kinds, p_versions, p_hashes, p_bodies)
         with ordinality u(id, kind, version, hash, body, i);
  if cardinality(p_consumed) > 0 then
    update refold.inbox m set consumed_seq = v_last where m.thread = p_thread and m.id = any (p_consumed);
  end if;
  return 'appended';
end $$;

-- Whether every one of these messages still waits. The row is locked first, so that the answer holds.
create function refold.all_wait(p_thread text, p_ids bigint[]) returns boolean
language plpgsql volatile as $$
begin
  if cardinality(p_ids) = 0 then
    return true;
  end if;
  perform from refold.threads t where t.thread = p_thread for no key update;
  return cardinality(p_ids) = (
    select count(*) from refold.inbox m
     where m.thread = p_thread and m.id = any (p_ids) and m.consumed_seq is null);
end $$;

-- Appends of many threads with one commit; each has its own answer. The caller sorts the threads, so that two
-- such calls take the locks of what they move in one order; the settings and the limit, for which the server takes
-- the list to be short, make it look them up in that order, by key, however small the table is when the plan is
-- made. What is refused is looked at after that: two calls that both have such may wait for each other until the
-- lock time-out. The events of append i are the next p_counts[i] of the arrays of events.
create function refold.append_many(
  p_threads      text[],
  p_expected     bigint[],
  p_head_hashes  bytea[],
  p_fences       bigint[],
  p_ttls_s       float8[],
  p_states       text[],
  p_wakes_at     bigint[],
  p_counts       integer[],
  p_ids          uuid[],
  p_kinds        text[],
  p_versions     smallint[],
  p_hashes       bytea[],
  p_bodies       bytea[],
  p_takers       integer[],
  p_consumed     bigint[])
returns text[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '1s'
set plan_cache_mode = force_generic_plan
set enable_hashjoin = off
set enable_mergejoin = off
set enable_seqscan = off as $$
declare
  v_now timestamptz := refold.now();
  v_xid bigint := refold.current_xid();
  v_count integer := cardinality(p_threads);
  v_upto integer[];
  v_moved bigint[];
  v_answers text[] := array_fill('appended'::text, array[v_count]);
begin
  v_upto := array(select sum(u.n) over (order by u.i)::integer from unnest(p_counts) with ordinality u(n, i));
  if cardinality(p_consumed) > 0 then
    for i in 1..v_count loop
      v_answers[i] := refold.append_batch(
        p_threads[i], p_expected[i], p_head_hashes[i], p_fences[i], p_ttls_s[i], p_states[i], p_wakes_at[i],
        p_ids[v_upto[i] - p_counts[i] + 1 : v_upto[i]], p_kinds[v_upto[i] - p_counts[i] + 1 : v_upto[i]],
        p_versions[v_upto[i] - p_counts[i] + 1 : v_upto[i]], p_hashes[v_upto[i] - p_counts[i] + 1 : v_upto[i]],
        p_bodies[v_upto[i] - p_counts[i] + 1 : v_upto[i]],
        array(select u.id from unnest(p_takers, p_consumed) u(taker, id) where u.taker = i));
    end loop;
    return v_answers;
  end if;
  with moved as (
    update refold.threads t
       set head = c.expected + c.count, head_hash = p_hashes[c.upto], head_xid = v_xid, state = c.state,
           wake_at = refold.from_micros(c.wake_at), lease_until = v_now + c.ttl_s * interval '1 second'
      from (select u.*
              from unnest(p_threads, p_expected, p_head_hashes, p_fences, p_ttls_s, p_states, p_wakes_at, p_counts,
                          v_upto)
                   with ordinality u(thread, expected, head_hash, fence, ttl_s, state, wake_at, count, upto, place)
             limit v_count) c
     where t.thread = c.thread and t.head = c.expected and t.head_hash = c.head_hash
       and t.fence = c.fence and t.holder is not null and t.head_xid < v_xid
    returning c.place, c.thread, c.fence, c.expected + c.count - c.upto as before, c.upto - c.count + 1 as first,
              c.upto),
  added as (
    insert into refold.events (thread, seq, id, kind, version, fence, xid, recorded_at, hash, body)
    select m.thread, m.before + i, p_ids[i], p_kinds[i], p_versions[i], m.fence, v_xid, v_now, p_hashes[i], p_bodies[i]
      from moved m cross join generate_series(m.first, m.upto) i)
  select array_agg(m.place) into v_moved from moved m;
  if cardinality(v_moved) = v_count then
    return v_answers;
  end if;
  for i in 1..v_count loop
    if v_moved is null or i <> all (v_moved) then
      v_answers[i] := refold.classify(p_threads[i], p_fences[i], p_expected[i] + p_counts[i], p_hashes[v_upto[i]]);
    end if;
  end loop;
  return v_answers;
end $$;


-- --------------------------------------------------------------------------------- holding and sending

-- True if the thread was made now.
create function refold.create(p_thread text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
  insert into refold.threads (thread) values (p_thread)
  on conflict (thread) do nothing;
  return found;
end $$;

-- The thread for a holder, if it is free, expired, the holder's already, or stolen. The fence grows unless
-- the holder stays the same: a repeated call after a lost answer changes nothing.
create function refold.acquire(
  p_thread         text,
  p_holder         uuid,
  p_name           text,
  p_ttl_s          float8,
  p_steal          bigint,
  out outcome      text,
  out fence        bigint,
  out head         bigint,
  out head_hash    bytea,
  out state        text,
  out remaining_s  float8,
  out name         text,
  out left_open    boolean,
  out now_us       bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s' as $$
#variable_conflict use_column
declare
  v_row refold.threads;
begin
  select t.* into v_row from refold.threads t where t.thread = p_thread for no key update;
  if not found then
    outcome := 'missing';
    return;
  elsif v_row.sealed then
    outcome := 'sealed';
    return;
  end if;
  remaining_s := extract(epoch from v_row.lease_until - refold.now());
  now_us := extract(epoch from refold.now()) * 1000000;
  left_open := v_row.holder is not null;
  if v_row.holder <> p_holder and remaining_s > 0 and v_row.fence is distinct from p_steal then
    outcome := 'busy';
    fence := v_row.fence;
    name := v_row.holder_name;
    return;
  end if;
  update refold.threads t
     set fence = t.fence + case when t.holder = p_holder then 0 else 1 end,
         holder = p_holder,
         holder_name = p_name,
         lease_until = refold.now() + p_ttl_s * interval '1 second'
   where t.thread = p_thread
  returning t.fence, t.head, t.head_hash, t.state into fence, head, head_hash, state;
  outcome := 'acquired';
  -- Whoever had it last; not to the holder itself, who may ask again since its answer was lost.
  name := case when v_row.holder = p_holder then null else v_row.holder_name end;
end $$;

-- False if the fence is not current.
create function refold.renew(p_thread text, p_fence bigint, p_ttl_s float8) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '1s' as $$
begin
  update refold.threads t set lease_until = refold.now() + p_ttl_s * interval '1 second'
   where t.thread = p_thread and t.fence = p_fence and t.holder is not null;
  return found;
end $$;

-- The lease back, unless a message above p_seen waits: senders lock the same row, so none is left behind.
create function refold.release(p_thread text, p_fence bigint, p_seen bigint) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s' as $$
declare
  v_row refold.threads;
begin
  select t.* into v_row from refold.threads t where t.thread = p_thread for no key update;
  if not found then
    return 'missing';
  elsif v_row.fence <> p_fence then
    return 'fenced';
  elsif v_row.holder is null then
    return 'released';
  elsif exists (select from refold.inbox m
                 where m.thread = p_thread and m.id > p_seen and m.consumed_seq is null) then
    return 'inbox_pending';
  end if;
  update refold.threads t set holder = null, lease_until = null where t.thread = p_thread;
  return 'released';
end $$;

-- Whether an event is in the log, for a transaction whose COMMIT was not answered: the row lock waits for
-- whatever may still add it, so that a no is final.
create function refold.recorded(p_thread text, p_seq bigint, p_id uuid) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s' as $$
begin
  perform from refold.threads t where t.thread = p_thread for no key update;
  return exists (select from refold.events e where e.thread = p_thread and e.seq = p_seq and e.id = p_id);
end $$;

-- A message into the inbox. The row lock makes ids grow in the order of arrival, and meets release().
create function refold.send(
  p_thread     text,
  p_key        text,
  p_kind       text,
  p_body       bytea,
  out outcome  text,
  out message  refold.inbox)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s' as $$
begin
  perform from refold.threads t where t.thread = p_thread for no key update;
  if not found then
    outcome := 'missing';
    return;
  end if;
  select m.* into message from refold.inbox m where m.thread = p_thread and m.key = p_key;
  if found then
    outcome := 'present';
    return;
  end if;
  insert into refold.inbox (thread, id, key, kind, body, sent_at)
  select p_thread, coalesce(max(m.id), 0) + 1, p_key, p_kind, p_body, refold.now()
    from refold.inbox m where m.thread = p_thread
  returning * into message;
  outcome := 'stored';
end $$;


-- ------------------------------------------------------------------------------- forks, imported threads

-- A new thread with the first events of another one and some of its own, and what waits in its inbox: all of
-- it at once, so that a fork that broke off is none. Called again after a lost answer it finds itself there.
-- It begins with fence 1, as if somebody had held it: the origin's worker may still be at a call of the prefix.
create function refold.fork(
  p_thread         text,
  p_origin         text,
  p_upto           bigint,
  p_upto_hash      bytea,
  p_state          text,
  p_ids            uuid[],
  p_kinds          text[],
  p_versions       smallint[],
  p_hashes         bytea[],
  p_bodies         bytea[],
  p_keys           text[],
  p_message_kinds  text[],
  p_messages       bytea[])
returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s' as $$
declare
  v_now timestamptz := refold.now();
  v_xid bigint := refold.current_xid();
  v_last bigint := p_upto + cardinality(p_ids);
  v_last_hash bytea := p_hashes[cardinality(p_hashes)];
begin
  if not exists (select from refold.events e
                  where e.thread = p_origin and e.seq = p_upto and e.hash = p_upto_hash) then
    return 'missing';
  end if;
  insert into refold.threads (thread, head, head_hash, head_xid, fence, state, created_at)
  values (p_thread, v_last, v_last_hash, v_xid, 1, p_state, v_now)
  on conflict (thread) do nothing;
  if not found then
    return case when exists (select from refold.events e
                              where e.thread = p_thread and e.seq = v_last and e.hash = v_last_hash)
           then 'forked' else 'taken' end;
  end if;
  insert into refold.events (thread, seq, id, kind, version, fence, xid, recorded_at, hash, body)
  select p_thread, e.seq, e.id, e.kind, e.version, 1, v_xid, e.recorded_at, e.hash, e.body
    from refold.events e
   where e.thread = p_origin and e.seq <= p_upto
  union all
  select p_thread, p_upto + u.i, u.id, u.kind, u.version, 1, v_xid, v_now, u.hash, u.body
    from unnest(p_ids, p_kinds, p_versions, p_hashes, p_bodies)
         with ordinality u(id, kind, version, hash, body, i);
  insert into refold.inbox (thread, id, key, kind, body, sent_at)
  select p_thread, u.i, u.key, u.kind, u.body, v_now
    from unnest(p_keys, p_message_kinds, p_messages) with ordinality u(key, kind, body, i);
  return 'forked';
end $$;

-- The chain over envelopes, as every writer computes it.
create function refold.chain(
  p_previous bytea, p_seq bigint, p_id uuid, p_version smallint, p_kind text, p_body bytea)
returns bytea
language sql immutable parallel safe
return sha256(p_previous || int8send(p_seq) || uuid_send(p_id) || int2send(p_version)
              || int2send(octet_length(p_kind)::smallint) || convert_to(p_kind, 'UTF8') || sha256(p_body));

-- Events of another journal, with their ids, hashes and times, in a thread that is made for them and sealed:
-- nobody can hold it until somebody adopts it. For the owner alone, since they enter without a tenure. The
-- chain is checked here again; fault is the seq where it breaks.
create function refold.admit(
  p_thread      text,
  p_expected    bigint,
  p_head_hash   bytea,
  p_state       text,
  p_ids         uuid[],
  p_kinds       text[],
  p_versions    smallint[],
  p_recorded    bigint[],
  p_hashes      bytea[],
  p_bodies      bytea[],
  out outcome   text,
  out fault     bigint)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s' as $$
declare
  v_row refold.threads;
  v_xid bigint := refold.current_xid();
  v_count integer := cardinality(p_ids);
  v_hash bytea := p_head_hash;
begin
  for i in 1..v_count loop
    v_hash := refold.chain(v_hash, p_expected + i, p_ids[i], p_versions[i], p_kinds[i], p_bodies[i]);
    if v_hash <> p_hashes[i] then
      outcome := 'corrupt';
      fault := p_expected + i;
      return;
    end if;
  end loop;
  if p_expected = 0 and p_head_hash = sha256('refold log 1') then
    insert into refold.threads (thread, sealed) values (p_thread, true) on conflict (thread) do nothing;
  end if;
  select t.* into v_row from refold.threads t where t.thread = p_thread for no key update;
  if v_row.head >= p_expected + v_count then
    outcome := case when exists (select from refold.events e
                                  where e.thread = p_thread and e.seq = p_expected + v_count and e.hash = v_hash)
                    then 'present' else 'fork' end;
  elsif v_row.head is distinct from p_expected or v_row.head_hash <> p_head_hash then
    outcome := 'fork';
  elsif not v_row.sealed then
    outcome := 'open';
  else
    update refold.threads t
       set head = p_expected + v_count, head_hash = v_hash, head_xid = v_xid, state = p_state
     where t.thread = p_thread;
    insert into refold.events (thread, seq, id, kind, version, fence, xid, recorded_at, hash, body)
    select p_thread, p_expected + u.i, u.id, u.kind, u.version, 0, v_xid, refold.from_micros(u.at), u.hash, u.body
      from unnest(p_ids, p_kinds, p_versions, p_recorded, p_hashes, p_bodies)
           with ordinality u(id, kind, version, at, hash, body, i);
    outcome := 'admitted';
  end if;
end $$;

-- True if the thread was sealed until now; null if it is not there.
create function refold.adopt(p_thread text) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s' as $$
declare
  v_sealed boolean;
begin
  select t.sealed into v_sealed from refold.threads t where t.thread = p_thread for no key update;
  if v_sealed then
    update refold.threads t set sealed = false where t.thread = p_thread;
  end if;
  return v_sealed;
end $$;


-- --------------------------------------------------------------------------------------------- reading

create function refold.read(p_thread text, p_after bigint, p_upto bigint, p_limit bigint)
returns table (
  seq bigint, id uuid, kind text, version smallint, fence bigint, recorded_at timestamptz, hash bytea, body bytea)
language sql stable
begin atomic
  select e.seq, e.id, e.kind, e.version, e.fence, e.recorded_at, e.hash, e.body
    from refold.events e
   where e.thread = p_thread and e.seq > p_after and e.seq <= coalesce(p_upto, 9223372036854775807)
   order by e.seq
   limit p_limit;
end;

-- Across threads, after a cursor. What a transaction still open may yet bring is waited for, so a cursor
-- never passes an event; any transaction that has written, in any database of the server, holds it back.
create function refold.feed(p_xid bigint, p_thread text, p_seq bigint, p_limit bigint)
returns table (
  xid bigint, thread text, seq bigint, id uuid, kind text, version smallint, fence bigint,
  recorded_at timestamptz, hash bytea, body bytea)
language sql stable
begin atomic
  select e.xid, e.thread, e.seq, e.id, e.kind, e.version, e.fence, e.recorded_at, e.hash, e.body
    from refold.events e
   where (e.xid, e.thread, e.seq) > (p_xid, p_thread, p_seq) and e.xid < refold.settled_xid()
   order by e.xid, e.thread, e.seq
   limit p_limit;
end;

create function refold.messages(p_thread text, p_after bigint, p_consumed boolean)
returns setof refold.inbox
language sql stable
begin atomic
  select m.* from refold.inbox m
   where m.thread = p_thread and m.id > p_after and (p_consumed or m.consumed_seq is null)
   order by m.id;
end;

create view refold.standing as
select t.thread,
       t.head,
       t.head_hash,
       t.fence,
       t.holder,
       extract(epoch from t.lease_until - refold.now())::float8 as lease_remaining_s,
       t.state,
       t.wake_at,
       t.created_at,
       coalesce((select e.recorded_at from refold.events e where e.thread = t.thread and e.seq = t.head),
                t.created_at) as updated_at,
       (select count(*) from refold.inbox m
         where m.thread = t.thread and m.consumed_seq is null) as inbox_waiting,
       t.sealed,
       t.holder_name
  from refold.threads t;

-- A page of threads in any of some states, newest first, after a row (created_at, thread). Each state gives its own
-- newest rows and the newest of those are taken, so that no page reads more than its rows for each state.
create function refold.list(
  p_after_at bigint, p_after text, p_limit bigint, p_states text[], p_attention boolean)
returns setof refold.standing
language plpgsql stable as $$
declare
  v_after_at timestamptz := coalesce(refold.from_micros(p_after_at), 'infinity');
begin
  -- The rows are chosen first and then dressed: the view's clock would keep a limit from reaching the index.
  return query
  select s.* from refold.standing s
   where s.thread = any (array(
           select c.thread
             from (select t.thread, t.created_at
                     from unnest(p_states) u(state)
                     cross join lateral (
                       select n.thread, n.created_at from refold.threads n
                        -- n.state = u.state, said so that only the index by state can serve it.
                        where n.state >= u.state and (n.state, n.created_at, n.thread) < (u.state, v_after_at, p_after)
                          -- Of running threads only those without a live lease need somebody; of sealed ones none.
                          and (not p_attention or not n.sealed
                               and (n.state <> 'running' or n.lease_until is null or n.lease_until <= refold.now()))
                        order by n.state desc, n.created_at desc, n.thread desc
                        limit p_limit) t
                    where not p_attention or u.state in ('running', 'waiting', 'parked', 'failed')
                   union all
                   -- Of threads at rest those need somebody that were sent something since.
                   (select r.thread, r.created_at from refold.threads r
                     where p_attention and r.state in ('idle', 'finished', 'cancelled') and r.state = any (p_states)
                       and r.thread in (select m.thread from refold.inbox m where m.consumed_seq is null)
                       and not r.sealed and (r.lease_until is null or r.lease_until <= refold.now())
                       and (r.created_at, r.thread) < (v_after_at, p_after)
                     order by r.created_at desc, r.thread desc
                     limit p_limit)) c
            order by c.created_at desc, c.thread desc
            limit p_limit))
   order by s.created_at desc, s.thread desc;
end $$;

-- For people with psql: bodies as JSON. A body that is no JSON text (a cipher's, an erased one) is null
-- here and does not spoil the query.
create function refold.readable(body bytea) returns json
language plpgsql immutable strict as $$
begin
  return convert_from(body, 'UTF8')::json;
exception when others then
  return null;
end $$;

create view refold.log as
select e.thread, e.seq, e.recorded_at, e.kind, e.version, e.fence, e.id,
       octet_length(e.body) as bytes, refold.readable(e.body) as body
  from refold.events e;


-- ---------------------------------------------------------------------------------------- immutability

create function refold.refuse() returns trigger
language plpgsql as $$
begin
  raise exception '% of refold.% refused: what is recorded there stays', tg_op, tg_table_name using errcode = 'RF001';
end $$;

-- Row triggers, since a statement trigger would not see a change made to a partition directly.
create trigger events_are_immutable before update or delete on refold.events
  for each row execute function refold.refuse();
create trigger events_are_not_truncated before truncate on refold.events
  for each statement execute function refold.refuse();
create trigger threads_stay before delete on refold.threads
  for each row execute function refold.refuse();
create trigger threads_are_not_truncated before truncate on refold.threads
  for each statement execute function refold.refuse();
create trigger messages_stay before delete on refold.inbox
  for each row execute function refold.refuse();
create trigger messages_are_not_truncated before truncate on refold.inbox
  for each statement execute function refold.refuse();

-- A message changes once, when it is taken.
create trigger messages_are_immutable before update on refold.inbox
  for each row
  when (old.consumed_seq is not null or new.consumed_seq is null
        or (old.thread, old.id, old.key, old.kind, old.body, old.sent_at)
           is distinct from (new.thread, new.id, new.key, new.kind, new.body, new.sent_at))
  execute function refold.refuse();


-- ----------------------------------------------------------------------------------------------- roles

-- What a role gets: to read only, or to read and call the functions that write. Nobody but the owner may
-- touch a table. For roles of your own: select refold.allow('my_workers'), refold.allow('my_people', true).
create function refold.allow(p_role name, p_read_only boolean default false) returns void
language plpgsql volatile as $$
begin
  execute format('grant usage on schema refold to %I', p_role);
  execute format('grant select on all tables in schema refold to %I', p_role);
  execute format(
    'grant execute on function refold.now, refold.from_micros, refold.xid_base,
       refold.settled_xid, refold.read, refold.feed, refold.messages, refold.list, refold.readable to %I',
    p_role);
  if not p_read_only then
    execute format(
      'grant execute on function refold.create, refold.acquire, refold.renew, refold.release, refold.append,
         refold.append_pair, refold.append_batch, refold.append_many, refold.recorded, refold.send,
         refold.fork, refold.adopt to %I', p_role);
  end if;
end $$;

-- Functions are open to everybody by default; these are not.
revoke execute on all functions in schema refold from public;

-- Roles belong to the server and not to the database: an owner who may not make them goes without, and
-- calls refold.allow() for whichever roles there are.
do $$
declare
  v_role name;
begin
  foreach v_role in array array['refold_app', 'refold_read'] loop
    if not exists (select from pg_catalog.pg_roles where rolname = v_role) then
      begin
        execute format('create role %I nologin', v_role);
      exception when insufficient_privilege or duplicate_object or unique_violation then
        raise notice 'refold: role % was not made: %', v_role, sqlerrm;
      end;
    end if;
    if exists (select from pg_catalog.pg_roles where rolname = v_role) then
      perform refold.allow(v_role, v_role = 'refold_read');
    end if;
  end loop;
end $$;


-- ---------------------------------------------------------------------------------------------- server

-- Transaction ids in the log come from the server it was written on. When the database has moved to
-- another one (a dump restored, an upgrade), ids go on from above the highest that is stored.
create function refold.adopt_server() returns void
language plpgsql volatile as $$
begin
  execute format(
    'create or replace function refold.xid_base() returns bigint language sql immutable parallel safe return %s::bigint',
    (select coalesce(max(e.xid), 0) from refold.events e));
  update refold.meta set system_identifier = (select c.system_identifier from pg_control_system() c);
end $$;

revoke execute on function refold.adopt_server from public;

insert into refold.meta (schema_version, system_identifier)
select 2, c.system_identifier from pg_control_system() c;

create trigger meta_stays before insert or delete or truncate on refold.meta
  for each statement execute function refold.refuse();
