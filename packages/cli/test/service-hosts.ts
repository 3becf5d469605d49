/** The operator's part of the service that tests talk to. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { type HostRecord, newUuid } from '@releap/contract';
import { readJson, send } from './service-http.ts';
import type { TestService } from './service-state.ts';

/** What the operator shows. */
export const OPERATOR_TOKEN = 'operator-token-of-the-tests';

export function addHost(service: TestService, more: Partial<HostRecord> = {}): HostRecord {
  const host: HostRecord = {
    id: newUuid(),
    region: 'local',
    status: 'online',
    ready: true,
    draining: false,
    draining_since: null,
    force: false,
    last_seen_at: new Date().toISOString(),
    facts: {
      arch: 'amd64',
      cores: 8,
      mem_mib: 16_384,
      disk_mib: 100_000,
      accelerator: 'tcg',
      cpu_model: 'max',
      vmm: 'qemu 7.2',
      gpus: 0,
    },
    used: { cpu: 0.5, mem_mib: 1024, disk_mib: 512, gpus: 0 },
    allocatable: { cpu: 16, mem_mib: 16_384, disk_mib: 100_000, gpus: 0 },
    sandboxes: {},
    snapshots: 0,
    ...more,
  };
  service.hosts.push(host);
  return host;
}

/** Sandboxes are on the host whose id is their `runner_id`. */
export async function hostsPath(
  service: TestService,
  request: IncomingMessage,
  response: ServerResponse,
  [id, verb]: string[],
): Promise<void> {
  if (request.headers.authorization !== `Bearer ${OPERATOR_TOKEN}`)
    return send(response, 401, { error: 'missing or invalid operator token' });
  if (id === undefined) {
    send(response, 200, { hosts: service.hosts });
    // What a drain has begun ends between two reads.
    for (const host of service.hosts) if (host.draining) host.sandboxes = settled(host.sandboxes);
    return;
  }
  const host = service.hosts.find((one) => one.id === id);
  if (request.method === 'DELETE') {
    if (!host && !service.forgotten.has(id)) return send(response, 404, { error: `host "${id}" not found` });
    if (host && host.status !== 'lost')
      return send(response, 409, { error: `host ${id} is ${host.status}: only a lost one can be forgotten` });
    service.hosts = service.hosts.filter((one) => one !== host);
    service.forgotten.add(id);
    const sandboxes = Object.values(host?.sandboxes ?? {}).reduce((sum, count) => sum + count, 0);
    return send(response, 200, {
      host_id: id,
      forgotten_at: new Date().toISOString(),
      sandboxes,
      snapshots: host?.snapshots ?? 0,
      builds: 0,
    });
  }
  if (!host) return send(response, 404, { error: `host "${id}" not found` });
  const body = await readJson(request);
  service.bodies.push(body);
  const held = service.sandboxes.filter((one) => one.runner_id === id);
  if (verb === 'undrain') {
    host.draining = false;
    return send(response, 200, { host });
  }
  if (verb === 'drain') {
    const force = body['force'] === true;
    Object.assign(host, { draining: true, force });
    const paused = held.filter((one) => one.persistent);
    const others = held.filter((one) => !one.persistent);
    host.sandboxes = {
      ...(paused.length > 0 ? { pausing: paused.length } : {}),
      ...(others.length > 0 ? { [force ? 'deleting' : 'running']: others.length } : {}),
    };
    const ids = (sandboxes: typeof held): string[] => sandboxes.map((one) => one.id);
    return send(response, 200, {
      host,
      did: { paused: ids(paused), stopped: [], deleted: force ? ids(others) : [] },
      left: force
        ? []
        : others.map(({ id: vm_id, status, persistent, spot }) => ({ vm_id, status, persistent, spot })),
    });
  }
  sendEvicted(response, held);
}

/** `POST /operator/vms/:id/evict` */
export function evictPath(
  service: TestService,
  request: IncomingMessage,
  response: ServerResponse,
  [id]: string[],
): void {
  if (request.headers.authorization !== `Bearer ${OPERATOR_TOKEN}`)
    return send(response, 401, { error: 'missing or invalid operator token' });
  const named = service.sandboxes.find((one) => one.id === id);
  if (!service.hosts.some((host) => host.id === named?.runner_id) || named === undefined)
    return send(response, 404, { error: `sandbox "${id}" not found` });
  if (!named.spot) return send(response, 409, { error: 'the sandbox is not a spot sandbox' });
  sendEvicted(response, [named]);
}

function sendEvicted(response: ServerResponse, named: TestService['sandboxes']): void {
  const evicted = named.filter((one) => one.spot && one.status === 'running');
  send(response, 200, {
    evicted: evicted.map((one) => ({ vm_id: one.id, status: one.persistent ? 'pausing' : 'deleting' })),
    left: named
      .filter((one) => one.spot && !evicted.includes(one))
      .map((one) => ({ vm_id: one.id, why: `it is ${one.status}` })),
  });
}

function settled({
  pausing,
  deleting: _deleting,
  ...rest
}: HostRecord['sandboxes']): HostRecord['sandboxes'] {
  return pausing === undefined ? rest : { ...rest, paused: pausing };
}
