/** A control plane with a host of many cores, started before the tests of the file that imports it, and sandboxes of its facade. */
import assert from 'node:assert/strict';
import { CompatSandbox, CompatSandboxItem, parseSandboxId } from '@releap/contract';
import { startWorld } from '@releap/testing/world';
import { Compile } from 'typebox/compile';
import { facade } from './compat.ts';

export const world = await startWorld({
  compatSnapshot: 'busybox',
  publicUrl: 'https://api.test',
  limits: { leaseGraceMs: 0 },
});
// Dedicated sandboxes have cores of their own.
await world.runner({ facts: { cores: 256, mem_mib: 1_000_000, disk_mib: 10_000_000 } });
/** Of the API, with the same key as `call`. */
export const native = await world.stranger();
export const call = facade(native);

export const uuidOf = (id: string): string => parseSandboxId(id)?.uuid ?? '';

const isSandbox = Compile(CompatSandbox);
const isItem = Compile(CompatSandboxItem);

export async function create(body: object = {}, by = call): Promise<CompatSandbox> {
  const { status, body: sandbox, text } = await by('POST', '/sandbox', body);
  assert.equal(status, 200, text);
  assert.ok(isSandbox.Check(sandbox), JSON.stringify([...isSandbox.Errors(sandbox)]));
  return sandbox;
}

export async function ids(query: string, by = call): Promise<string[]> {
  const { status, body, text } = await by('GET', `/sandbox?${query}`);
  assert.equal(status, 200, text);
  for (const item of body.items) assert.ok(isItem.Check(item));
  return body.items.map(({ id }: { id: string }) => id);
}
