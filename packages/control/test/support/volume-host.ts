/** A scripted host that commits volumes, as the runner does. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import type { VolumeCommitRequest } from '@releap/contract';
import type { VolumeCopyDetail } from '@releap/contract/runner';
import { credentialOf } from '@releap/testing/credentials';
import {
  caller,
  create,
  startWorld,
  until,
  waitFor,
  type Answer,
  type Caller,
  type Created,
  type ScriptedRunner,
  type World,
} from '@releap/testing/world';

export const digestOf = (text: string): string => `sha256:${createHash('sha256').update(text).digest('hex')}`;
const blobOf = (text: string) => ({ digest: digestOf(text), bytes: Buffer.byteLength(text) });

export interface Commit extends Partial<Omit<VolumeCommitRequest, 'root' | 'blobs' | 'dropped'>> {
  /** Text of the root blob. */
  root: string;
  /** Texts of packs. */
  add?: string[];
  drop?: string[];
}

export class VolumeHost {
  readonly runner: ScriptedRunner;
  readonly call: Caller;
  readonly #world: World;

  constructor(world: World, runner: ScriptedRunner) {
    this.#world = world;
    this.runner = runner;
    this.call = caller(() => world.internalUrl, credentialOf(runner.id), '');
  }

  /** A sandbox with the volume that runs on this host; hosts with the volume are preferred. */
  async mount(volume: string, body: object = {}): Promise<Created> {
    const vm = await create(this.#world.call, this.#world, {
      volumes: [{ volume, mount_path: '/data' }],
      ...body,
    });
    const { runner_id: host } = await waitFor(this.#world.call, vm.id, 'running');
    assert.equal(host, this.runner.id);
    return vm;
  }

  async upload(volume: string, ...texts: string[]): Promise<void> {
    for (const text of texts) {
      const answer = await this.put(volume, digestOf(text), text);
      assert.equal(answer.status, 204, answer.text);
    }
  }

  put(volume: string, digest: string, text: string): Promise<Answer> {
    const headers = { 'content-type': 'application/octet-stream' };
    return this.call('PUT', `/internal/blobs/${digest}?volume=${volume}`, text, { headers });
  }

  /** Without uploads: see `commit`. */
  sendCommit(volume: string, { root, add = [], drop = [], ...rest }: Commit): Promise<Answer> {
    const request: VolumeCommitRequest = {
      parent: 0,
      root: blobOf(root),
      blobs: add.map(blobOf),
      dropped: drop.map(digestOf),
      packs: add.length - drop.length,
      used_bytes: 5,
      files: 1,
      reason: 'background',
      conflicts: [],
      ...rest,
    };
    return this.call('POST', `/internal/volumes/${volume}/commits`, request);
  }

  /** Uploads root and packs, and commits. @returns the number */
  async commit(volume: string, commit: Commit): Promise<{ number: number; manifest_id: string }> {
    await this.upload(volume, commit.root, ...(commit.add ?? []));
    const answer = await this.sendCommit(volume, commit);
    assert.equal(answer.status, 200, answer.text);
    return answer.body as { number: number; manifest_id: string };
  }

  async read(volume: string, query = ''): Promise<Answer> {
    return this.call('GET', `/internal/volumes/${volume}${query}`);
  }

  /** Reports the copy, and waits until that is stored. */
  async report(
    volume: string,
    detail: VolumeCopyDetail,
    status: 'present' | 'absent' | 'deleted' = 'present',
  ): Promise<void> {
    const generation = this.runner.volumes.get(volume)?.generation ?? 0;
    const seq = this.runner.report({ kind: 'volume', id: volume, generation, status, detail });
    await until(() => this.runner.acked >= seq);
  }
}

/** A world with two hosts that report of volumes only what tests say, the second of the region `there`, and a region `old` without any. */
export async function startVolumeHosts() {
  const world = await startWorld();
  await world.database.pool.query(`insert into regions (id, name) values ('there', 'There'), ('old', 'Old')`);
  const volume = (): void => undefined;
  const a = new VolumeHost(world, await world.runner({ volume }));
  const b = new VolumeHost(world, await world.runner({ region: 'there', volume }));
  let count = 0;
  return {
    world,
    a,
    b,
    /** A new volume that both have mounted, and the sandboxes. */
    shared: async (): Promise<{ id: string; name: string; vms: string[] }> => {
      const name = `shared-${count++}`;
      const { body } = await world.call('POST', '/volumes', { name });
      const vms = [await a.mount(name), await b.mount(name, { region: 'there' })];
      return { id: body.id as string, name, vms: vms.map((vm) => vm.id) };
    },
  };
}

export async function removeSandboxes(world: World, vms: readonly string[]): Promise<void> {
  for (const vm of vms) {
    await world.call('DELETE', `/vms/${vm}`);
    await waitFor(world.call, vm, 'deleted');
  }
}

/** Digests of the packs of all commits. */
export async function packsOf(world: World, volume: string): Promise<string[]> {
  const { rows } = await world.database.pool.query<{ digest: string }>(
    'select digest from volume_blobs where volume_id = $1 order by 1',
    [volume],
  );
  return rows.map(({ digest }) => digest);
}
