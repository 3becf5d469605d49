/** What a runner does with the store, for scripted ones. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import type { ArtifactAssignment } from '@releap/contract/runner';
import { credentialOf } from '@releap/testing/credentials';
import { until, type ScriptedRunner, type World } from '@releap/testing/world';

/** The parts of a snapshot, by name. */
export const PARTS = { 'disk.json': '{}', 'layer-0.qcow2': 'a layer', 'root.squashfs': 'a root image' };

export const digestOf = (text: string): string => `sha256:${createHash('sha256').update(text).digest('hex')}`;

/** A request of this runner. */
export function ask(
  world: World,
  runner: ScriptedRunner,
  method: string,
  path: string,
  body?: string,
): Promise<Response> {
  return fetch(`${world.internalUrl}${path}`, {
    method,
    headers: {
      authorization: `Bearer ${credentialOf(runner.id)}`,
      'content-type': path.includes('/blobs/') ? 'application/octet-stream' : 'application/json',
    },
    ...(body === undefined ? {} : { body }),
  });
}

/** Uploads these texts as the parts of the artifact, and reports them. */
export async function upload(
  world: World,
  runner: ScriptedRunner,
  { id, generation }: Pick<ArtifactAssignment, 'id' | 'generation'>,
  parts: Record<string, string>,
): Promise<void> {
  for (const text of Object.values(parts)) {
    const answer = await ask(world, runner, 'PUT', `/internal/blobs/${digestOf(text)}?location=${id}`, text);
    assert.equal(answer.status, 204, await answer.text());
  }
  await reportStored(runner, { id, generation }, parts);
}

export async function reportStored(
  runner: ScriptedRunner,
  { id, generation }: Pick<ArtifactAssignment, 'id' | 'generation'>,
  parts: Record<string, string>,
): Promise<void> {
  const seq = runner.report({
    kind: 'artifact',
    id,
    generation,
    status: 'stored',
    detail: {
      parts: Object.entries(parts).map(([name, text]) => ({
        name,
        digest: digestOf(text),
        bytes: text.length,
      })),
    },
  });
  await until(() => runner.acked >= seq);
}
