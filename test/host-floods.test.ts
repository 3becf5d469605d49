import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { readFile, rm } from 'node:fs/promises';
import { connect } from 'node:net';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { promisify } from 'node:util';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { partPids } from '@releap/testing/processes';
import { rounds } from '@releap/testing/repetitions';
import type { Service } from '@releap/testing/service';
import { sharedService } from '@releap/testing/shared-service';

const SMALL = { cpu: 1, mem_mib: 256, scratch_mib: 64 };
/** How long each flood lasts. */
const FLOOD_S = rounds(6, 60);
/** Queries that a flood has at least, also where the guest gets little of a busy machine. */
const QUERIES = 1_000;
/** For an emulated guest that gets next to nothing of it. */
const PATIENCE_S = 200;
const PORTS = [{ vm_port: 5000, proto: 'udp' }, { vm_port: 8000 }];

describe('a sandbox that floods its host', () => {
  let service: Service;
  let flooder: { id: string; token: string };
  let neighbour: { id: string };
  const ports = { tcp: 0, udp: 0 };

  before(async () => {
    service = await sharedService();
    flooder = await service.create({ ...SMALL, ports: PORTS });
    neighbour = await service.create(SMALL);
    const { body } = await service.call<{
      port_map: { vm_port: number; host_port: number }[];
    }>('GET', `/vms/${flooder.id}`);
    for (const { vm_port: port, host_port: published } of body.port_map)
      ports[port === 8000 ? 'tcp' : 'udp'] = published;
    await upload(await buildFlood());
  });
  after(() => service?.[Symbol.asyncDispose]());

  async function buildFlood(): Promise<Buffer> {
    const folder = await temporaryFolder('releap-flood-');
    try {
      const output = join(folder, 'flood');
      const source = join(import.meta.dirname, 'support/flood/main.go');
      await promisify(execFile)(process.env['RELEAP_TEST_GO'] || 'go', ['build', '-o', output, source], {
        env: { ...process.env, CGO_ENABLED: '0', GOOS: 'linux', GOTOOLCHAIN: 'local', GO111MODULE: 'off' },
      });
      return await readFile(output);
    } finally {
      await rm(folder, { recursive: true });
    }
  }

  async function upload(bytes: Buffer): Promise<void> {
    const url = `${await service.toolboxUrl()}/${flooder.id}/files/upload?path=/flood`;
    const headers = { authorization: `Bearer ${flooder.token}` };
    const answer = await fetch(url, { method: 'POST', headers, body: new Uint8Array(bytes) });
    assert.ok(answer.ok, await answer.text());
    await service.exec(flooder.id, 'chmod 755 /flood');
  }

  /** Until the flood is over the neighbour's commands are answered, and the host stays ready and online. */
  async function whileFlooded(flood: Promise<unknown>): Promise<void> {
    const { runner } = await partPids(service.home);
    const token = (await readFile(join(service.home, 'operator.token'), 'utf8')).trim();
    const over = new AbortController();
    const flooding = flood.finally(() => {
      over.abort();
    });
    const seen = new Set<string>();
    while (!over.signal.aborted || seen.size === 0) {
      assert.equal((await service.exec(neighbour.id, 'echo here')).result, 'here\n');
      const answer = await fetch(`${service.bootstrap.internal_url}/operator/hosts`, {
        headers: { authorization: `Bearer ${token}` },
      });
      const { hosts } = (await answer.json()) as {
        hosts: { status: string; ready: boolean; last_seen_at: string }[];
      };
      for (const { status, ready, last_seen_at: heard } of hosts) {
        assert.deepEqual({ status, ready }, { status: 'online', ready: true });
        seen.add(heard);
      }
    }
    await flooding;
    assert.equal((await partPids(service.home)).runner, runner, 'the runner was replaced');
  }

  test('with DNS queries, thousands a second: its neighbour answers and the host stays ready', async () => {
    const flood = service.exec(flooder.id, `/flood 172.16.0.1:53 ${FLOOD_S} ${QUERIES}`, {
      timeout: FLOOD_S + PATIENCE_S,
    });
    await whileFlooded(flood);
    const { result } = await flood;
    assert.ok(Number(result) >= QUERIES, result);
  });

  test('with datagrams and connections to its declared ports, from outside', async () => {
    const end = performance.now() + FLOOD_S * 1000;
    const packet = Buffer.alloc(200, 1);
    const sockets = Array.from({ length: 600 }, () => createSocket('udp4').on('error', () => undefined));
    const datagrams = async (): Promise<void> => {
      for (let sent = 0; performance.now() < end; ) {
        for (let burst = 0; burst < 50; burst += 1, sent += 1)
          sockets[sent % sockets.length]?.send(packet, ports.udp, '127.0.0.1', () => undefined);
        await turn();
      }
    };
    const connections = async (): Promise<void> => {
      while (performance.now() < end) {
        const socket = connect({ host: '127.0.0.1', port: ports.tcp });
        socket.on('error', () => undefined);
        await once(socket, 'close').catch(() => undefined);
      }
    };
    try {
      await whileFlooded(Promise.all([datagrams(), ...Array.from({ length: 10 }, connections)]));
    } finally {
      for (const socket of sockets) socket.close();
    }
  });
});
