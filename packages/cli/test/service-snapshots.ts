/** Forks and snapshots of the service that tests talk to. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { newUuid } from '@releap/contract';
import { send } from './service-http.ts';
import type { TestSandbox, TestService, TestSnapshot } from './service-state.ts';

export function addSnapshot(
  service: TestService,
  name: string,
  more: Partial<TestSnapshot> = {},
): TestSnapshot {
  const snapshot: TestSnapshot = {
    id: newUuid(),
    name,
    kind: 'disk',
    status: 'ready',
    error: null,
    no_changes: false,
    parent_id: null,
    sandbox_id: 'local-x',
    region: 'local',
    image_ref: 'busybox',
    vcpus: 2,
    mem_mib: 1024,
    scratch_mib: 512,
    created_at: new Date().toISOString(),
    coming: [],
    ...more,
  };
  service.snapshots.unshift(snapshot);
  return snapshot;
}

export function forkOf(
  service: TestService,
  source: TestSandbox,
  body: Record<string, unknown>,
  response: ServerResponse,
): void {
  if (!source.persistent)
    return send(response, 409, { error: `sandbox "${source.name}" is not persistent: it cannot be forked` });
  const child = service.add(typeof body['name'] === 'string' ? body['name'] : `${source.name}-fork`, {
    status: 'assigned',
    persistent: true,
    forked_from: source.id,
    coming: [...(service.outcomes.get(`fork ${source.name}`) ?? ['booting', source.status])],
  });
  send(response, 200, {
    vm_id: child.id,
    job_id: newUuid(),
    name: child.name,
    status: 'assigned',
    access_token: 'rlpv_x',
    forked_from: source.id,
  });
}

export function snapshotOf(
  service: TestService,
  source: TestSandbox,
  body: Record<string, unknown>,
  response: ServerResponse,
): void {
  const name = String(body['name']);
  const kind = body['kind'] === 'full' ? 'full' : 'disk';
  if (service.snapshots.some((one) => one.name === name))
    return send(response, 409, { error: `a snapshot named "${name}" exists` });
  if (source.persistent !== (kind === 'full'))
    return send(response, 409, { error: `kind ${kind} is not for a sandbox of this sort` });
  const { coming: _coming, ...record } = addSnapshot(service, name, {
    kind,
    status: 'pending',
    coming: ['pending', 'ready'],
  });
  send(response, 200, { ...record, job_id: newUuid() });
}

export function oneSnapshot(
  service: TestService,
  request: IncomingMessage,
  response: ServerResponse,
  id: string,
): void {
  const found = service.snapshots.find((one) => one.id === id);
  if (!found) return send(response, 404, { error: `snapshot "${id}" not found` });
  if (request.method === 'DELETE') {
    service.snapshots.splice(service.snapshots.indexOf(found), 1);
    return send(response, 200, { id, deleted: true });
  }
  const { coming, ...record } = found;
  send(response, 200, record);
  found.status = coming.shift() ?? found.status;
}
