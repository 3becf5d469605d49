/**
 * Records in the audit log what API keys change. Entries are written in batches, so that they delay no request: a server that is
 * killed loses those of the last second.
 */
import { compatOperations, newUuid, operations, type Operation } from '@releap/contract';
import { queryAll, statement, type Database } from '@releap/database';
import type { Logger } from 'pino';
import type { FastifyRequest } from 'fastify';
import type { Principal } from '../../platform/auth/authenticator.ts';
import type { Handler, Plane } from '../../platform/http/plane.ts';
import { createWriteQueue } from '../../platform/work/write-queue.ts';

/** Action and kind of target of each operation that is recorded. */
const RECORDED = new Map<Operation, readonly [action: string, kind: string]>([
  [operations.createSandbox, ['sandbox.create', 'sandbox']],
  [operations.deleteSandbox, ['sandbox.delete', 'sandbox']],
  [operations.stopSandbox, ['sandbox.stop', 'sandbox']],
  [operations.startSandbox, ['sandbox.start', 'sandbox']],
  [operations.pauseSandbox, ['sandbox.pause', 'sandbox']],
  [operations.resumeSandbox, ['sandbox.resume', 'sandbox']],
  [operations.forkSandbox, ['sandbox.fork', 'sandbox']],
  [operations.createEndpoint, ['endpoint.create', 'endpoint']],
  [operations.updateEndpoint, ['endpoint.update', 'endpoint']],
  [operations.deleteEndpoint, ['endpoint.delete', 'endpoint']],
  [operations.createPreviewLink, ['preview_link.create', 'endpoint']],
  [operations.createSnapshot, ['snapshot.create', 'snapshot']],
  [operations.deleteSnapshot, ['snapshot.delete', 'snapshot']],
  [operations.createImage, ['image.create', 'image']],
  [operations.deleteImage, ['image.delete', 'image']],
  [operations.deployFunction, ['function.deploy', 'function']],
  [operations.deleteFunction, ['function.delete', 'function']],
  [operations.updateFunctionConfig, ['function.configure', 'function']],
  [operations.setFunctionPublic, ['function.public', 'function']],
  [operations.createSchedule, ['schedule.create', 'schedule']],
  [operations.updateSchedule, ['schedule.update', 'schedule']],
  [operations.deleteSchedule, ['schedule.delete', 'schedule']],
  [operations.putSecret, ['secret.put', 'secret']],
  [operations.deleteSecret, ['secret.delete', 'secret']],
  [operations.putRegistry, ['registry.put', 'registry']],
  [operations.putRegistryByBody, ['registry.put', 'registry']],
  [operations.deleteRegistry, ['registry.delete', 'registry']],
  [operations.createVolume, ['volume.create', 'volume']],
  [operations.deleteVolume, ['volume.delete', 'volume']],
  [operations.restoreVolume, ['volume.restore', 'volume']],
  [operations.commitVolume, ['volume.commit', 'volume']],
  [operations.createObjectStore, ['object_store.create', 'object_store']],
  [operations.deleteObjectStore, ['object_store.delete', 'object_store']],
  [operations.mountObjectStore, ['object_store.mount', 'object_store']],
  [operations.unmountObjectStore, ['object_store.unmount', 'sandbox']],
]);

/** Calls of functions have a log of their own, and renewals change nothing that another client sees. */
export const UNRECORDED: ReadonlySet<Operation> = new Set<Operation>([
  operations.invokeFunction,
  operations.spawnInvocation,
  operations.mapInvocations,
  operations.leaseSandbox,
  compatOperations.touchSandbox,
  compatOperations.activateSnapshot,
]);

/** Of the compatibility facade. */
const COMPAT = new Map<Operation, readonly [action: string, kind: string]>([
  [compatOperations.createSandbox, ['sandbox.create', 'sandbox']],
  [compatOperations.deleteSandbox, ['sandbox.delete', 'sandbox']],
  [compatOperations.startSandbox, ['sandbox.start', 'sandbox']],
  [compatOperations.stopSandbox, ['sandbox.stop', 'sandbox']],
  [compatOperations.expireSignedPreviewUrl, ['preview_link.expire', 'sandbox']],
  [compatOperations.createSnapshot, ['snapshot.create', 'snapshot']],
  [compatOperations.deleteSnapshot, ['snapshot.delete', 'snapshot']],
]);

export function isRecorded(operation: Operation): boolean {
  return RECORDED.has(operation) || COMPAT.has(operation);
}

interface Entry {
  id: string;
  org_id: string;
  project_id: string;
  actor_id: string;
  action: string;
  target_kind: string;
  target_id: string;
  ip: string;
  user_agent: string | null;
  created_at: string;
}

/** A key's name is looked up here, and not by each request. Those of an earlier attempt may be written already. $1 entries */
const WRITE = statement(
  'audit-write-keys',
  `insert into audit_log (id, org_id, project_id, actor_kind, actor_id, actor_name, action, target_kind, target_id, details, ip,
                          user_agent, outcome, created_at)
   select e.id, e.org_id, e.project_id, 'api_key', e.actor_id, k.name, e.action, e.target_kind, e.target_id, '{}', e.ip,
          e.user_agent, 'done', e.created_at
     from jsonb_to_recordset($1::jsonb) as e(id uuid, org_id uuid, project_id uuid, actor_id text, action text, target_kind text,
            target_id text, ip text, user_agent text, created_at timestamptz)
     left join api_keys k on k.id = e.actor_id::uuid
   on conflict do nothing`,
);

export interface KeyAudit {
  /** The plane whose changes are recorded when they were done. */
  audited(plane: Plane<'workload'>): Plane<'workload'>;
  /** Writes what waits. */
  flush(): Promise<void>;
}

export function createKeyAudit({ database, log }: { database: Database; log: Logger }): KeyAudit {
  const queue = createWriteQueue<Entry>({
    write: (batch) => queryAll(database.pool, WRITE, [JSON.stringify(batch)]),
    batch: 1_000,
    most: 20_000,
    retryMs: 1_000,
    onError: (error) => log.warn({ err: error }, 'entries of the audit log cannot be written now'),
  });

  function record(
    [action, kind]: readonly [string, string],
    target: string,
    principal: Principal,
    request: FastifyRequest,
  ): void {
    const entry = {
      id: newUuid(),
      org_id: principal.orgId,
      project_id: principal.projectId,
      actor_id: principal.keyId,
      action,
      target_kind: kind,
      target_id: target,
      ip: request.ip,
      user_agent: request.headers['user-agent']?.slice(0, 500) ?? null,
      created_at: new Date().toISOString(),
    };
    // Written by the periodic task: changes come one at a time, and none of them waits for its entry.
    if (queue.add([entry]) > 0)
      log.error({ action, target, key: principal.keyId }, 'an entry of the audit log is lost: too many wait');
  }

  return {
    audited(plane) {
      return {
        plugin: plane.plugin,
        operation(operation, handler) {
          const recorded = RECORDED.get(operation) ?? COMPAT.get(operation);
          if (recorded === undefined) {
            plane.operation(operation, handler);
            return;
          }
          const wrapped = async (call: Parameters<typeof handler>[0]): Promise<unknown> => {
            const answer: unknown = await handler(call);
            record(recorded, targetOf(answer, call.request), call.principal, call.request);
            return answer;
          };
          plane.operation(operation, wrapped as Handler<typeof operation>);
        },
      };
    },
    flush: queue.flush,
  };
}

/** The id that the answer has, else the one of the path or the body. */
function targetOf(answer: unknown, { params, body }: FastifyRequest): string {
  return (
    firstText(answer, ['id', 'endpoint_id', 'vm_id', 'image_id', 'function_id']) ??
    firstText(params, ['id', 'id_or_name', 'name', 'host']) ??
    firstText(body, ['host']) ??
    ''
  );
}

function firstText(value: unknown, names: readonly string[]): string | undefined {
  if (value === null || typeof value !== 'object') return undefined;
  const fields = value as Record<string, unknown>;
  return names.map((name) => fields[name]).find((field) => typeof field === 'string');
}
