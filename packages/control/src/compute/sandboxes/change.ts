/** Lifecycle changes that clients request: of concurrent requests one wins, and the others get 409 with the reason. */
import {
  ApiError,
  conflict,
  parseSandboxId,
  quote,
  sandboxNotFound,
  type SandboxId,
  type CodeOf,
} from '@releap/contract';
import { restart, type Restarted, type RestartContext } from '../scheduler/restart.ts';
import { getFacts } from './queries.ts';
import type { SandboxRow } from '@releap/database';
import { decide, refusal, refusalCode } from './transitions.ts';

export type ChangeEvent = 'stop' | 'start' | 'pause' | 'resume' | 'delete';

/** Participles for messages: "sandbox X cannot be …". */
const DONE = {
  stop: 'stopped',
  start: 'started',
  pause: 'paused',
  resume: 'resumed',
  delete: 'deleted',
} as const;

/** Retries of an event whose sandbox changed concurrently: each retry means that another request won. */
const TRIES = 8;

/**
 * @param shownId as the caller wrote it
 * @returns its present state; `moved` when this call changed it, and false when it was in that state already
 * @throws 404, or 409 with its state and what is allowed
 */
export async function changeSandbox(
  context: RestartContext,
  event: ChangeEvent,
  shownId: string,
  projectId: string,
): Promise<{ id: string; region: string; status: SandboxRow['status']; moved: boolean }> {
  const { database } = context;
  const id = readSandboxId(shownId);
  const refuse = (why: string, code: CodeOf<409>): ApiError =>
    conflict(`sandbox ${quote(shownId)} cannot be ${DONE[event]}: ${why}`, code);
  for (let attempt = 0; attempt < TRIES; attempt++) {
    const result = await applyEvent(context, event, id, projectId);
    if (result !== undefined) {
      if ('refused' in result) throw refuse(result.refused, 'no_capacity');
      const { moved } = result;
      return { id: moved.id, region: moved.region, status: moved.status, moved: true };
    }
    const facts = await getFacts(database.pool, id, projectId);
    if (facts === undefined) throw sandboxNotFound(shownId);
    const row = decide(event, facts);
    if (row === undefined) {
      const refused = refuse(refusal(event, facts), refusalCode(event, facts));
      throw facts.move_id === null ? refused : retryLater(refused);
    }
    if (row.to === 'same') return { id: facts.id, region: facts.region, status: facts.status, moved: false };
  }
  throw conflict(
    `sandbox ${quote(shownId)} is changing too fast to be ${DONE[event]}: try again`,
    'concurrent_change',
  );
}

/** A move takes as long as its host takes to send what it has. */
const MOVE_RETRY_AFTER_SECS = 5;

function retryLater({ status, message, code }: ApiError): ApiError {
  return new ApiError(status, message, {
    code,
    headers: { 'retry-after': String(MOVE_RETRY_AFTER_SECS) },
  });
}

async function applyEvent(
  context: RestartContext,
  event: ChangeEvent,
  { uuid, region }: SandboxId,
  projectId: string,
): Promise<Restarted> {
  const change = {
    id: uuid,
    project_id: projectId,
    owner_kind: 'project' as const,
    ...(region === null ? {} : { region }),
  };
  if (event === 'start' || event === 'resume') return restart(context, event, change);
  const [moved] = await context.lifecycle.apply(event, [change]);
  return moved && { moved };
}

/** A malformed id is a 404, as an unknown one is; lookups answer the same for an id of another region. */
export function readSandboxId(text: string): SandboxId {
  const id = parseSandboxId(text);
  if (id === null) throw sandboxNotFound(text);
  return id;
}
