/** `GET /fns/:name/logs`: what handlers print, read from the hosts of the instances. */
import assert from 'node:assert/strict';
import type { ServerResponse } from 'node:http';
import { describe, it } from 'node:test';
import { create, startWorld, until, waitFor } from '@releap/testing/world';
import { newFunction, newVersion, type FunctionRow } from './support/functions.ts';

const world = await startWorld();
const runner = await world.runner();
const { rows } = await world.database.pool.query<{ id: string }>('select id from projects limit 1');
const projectId = rows[0]?.id ?? '';

/** A sandbox that runs becomes an instance. @returns its id, and the beginning of its lines */
async function instance(fn: FunctionRow, version = 1, versionId = fn.versionId) {
  const vm = await create(world.call, world);
  await waitFor(world.call, vm.id, 'running');
  const { pool } = world.database;
  await pool.query(`update sandboxes set owner_kind = 'service', owner_service = 'functions' where id = $1`, [
    vm.uuid,
  ]);
  await pool.query(
    `insert into function_instances (sandbox_id, function_id, version_id, project_id, purpose) values ($1, $2, $3, $4, 'serve')`,
    [vm.uuid, fn.id, versionId, projectId],
  );
  return { ...vm, prefix: `[v${version} ${vm.uuid.slice(0, 8)}] ` };
}
const path = (vm: { uuid: string }, follow = ''): string => `/vms/${vm.uuid}/logs/entrypoint${follow}`;
const says = (vm: { uuid: string }, text: string): void =>
  void runner.logs.set(path(vm), (_request, response) => response.end(text));
const logs = async (name: string, query = ''): Promise<string> => {
  const answer = await world.call('GET', `/fns/${name}/logs${query}`);
  assert.equal(answer.status, 200, answer.text);
  return answer.text;
};

describe('GET /fns/:name/logs', () => {
  it('has the output of all instances, the oldest first, each line with its version and instance', async () => {
    const fn = await newFunction(world.database, projectId);
    assert.equal(await logs(fn.name), '');
    const first = await instance(fn);
    says(first, 'one\n\ntwo without an end');
    const second = await instance(fn, 2, await newVersion(world.database, fn, { version: 2 }));
    says(second, `${'x'.repeat(70_000)}\n`);
    const long = `${second.prefix}${'x'.repeat(65_536)}\n${second.prefix}${'x'.repeat(70_000 - 65_536)}\n`;
    const old = ['one', '', 'two without an end'].map((line) => `${first.prefix}${line}\n`).join('');
    assert.equal(await logs(fn.name), old + long);
    assert.equal(await logs(fn.name, '?version=1'), old);
    // Its output outlives it.
    await world.database.pool.query(`update sandboxes set status = 'deleted' where id = $1`, [first.uuid]);
    assert.equal(await logs(fn.name), old + long);
    // One host that does not answer takes nothing from the others.
    runner.logs.set(path(first), (request) => request.socket.destroy());
    assert.equal(await logs(fn.name), `${first.prefix}(its host did not answer)\n${long}`);
  });

  it('is the only way to the output of an instance, and of the own project', async () => {
    const fn = await newFunction(world.database, projectId);
    const vm = await instance(fn);
    says(vm, 'secret\n');
    assert.equal((await world.call('GET', `/vms/${vm.id}/entrypoint-logs`)).status, 404);
    const stranger = await world.stranger();
    assert.equal((await stranger('GET', `/fns/${fn.name}/logs`)).status, 404);
    assert.equal((await world.call('GET', '/fns/nonsense/logs')).status, 404);
    for (const version of ['x', '99999999999'])
      assert.equal((await world.call('GET', `/fns/${fn.name}/logs?version=${version}`)).status, 400);
  });

  it('follows running instances and those that start later, across a host that drops the connection', async () => {
    const fn = await newFunction(world.database, projectId);
    const ended = await instance(fn);
    says(ended, 'before\n');
    await world.database.pool.query(`update sandboxes set status = 'deleted' where id = $1`, [ended.uuid]);
    const first = await instance(fn);
    const open: ServerResponse[] = [];
    let text = 'a\n';
    runner.logs.set(path(first, '?follow=1'), (_request, response) => {
      response.write(text);
      open.push(response);
    });
    const leaving = new AbortController();
    const answer = await fetch(`${world.url}/fns/${fn.name}/logs?follow=1`, {
      headers: { authorization: `Bearer ${world.call.key}` },
      signal: leaving.signal,
    });
    let seen = '';
    const reading = (async () => {
      for await (const chunk of answer.body ?? []) seen += Buffer.from(chunk).toString();
    })().catch(() => undefined);
    await until(() => seen.includes('a\n'));
    // Half a line, and then the host restarts.
    open[0]?.write('b\nhal');
    await until(() => seen.includes('b\n'));
    text = 'a\nb\nhalf\n';
    open[0]?.destroy();
    await until(() => seen.includes('half'));
    const second = await instance(fn);
    runner.logs.set(path(second, '?follow=1'), (_request, response) => response.write('new\n'));
    await until(() => seen.includes('new'));
    assert.equal(
      seen,
      `${ended.prefix}before\n${['a', 'b', 'half'].map((line) => `${first.prefix}${line}\n`).join('')}${second.prefix}new\n`,
    );
    leaving.abort();
    await reading;
    await until(() => open.at(-1)?.closed === true);
  });
});
