/** `GET /sandbox`. */
import assert from 'node:assert/strict';
import { before, describe, it } from 'node:test';
import { newUuid, type CompatSandbox } from '@releap/contract';
import { inspect } from '@releap/testing/inspect';
import type { Caller } from '@releap/testing/world';
import { facade, refused } from '../support/compat.ts';
import { create, ids, uuidOf, world } from '../support/compat-sandboxes.ts';

describe('GET /sandbox', () => {
  let by: Caller;
  const made: CompatSandbox[] = [];
  before(async () => {
    by = facade(await world.stranger());
    for (const [name, cpu, label] of [
      ['Alpha', 1, 'x'],
      ['alps', 2, 'y'],
      ['beta', 3, 'x'],
    ] as const)
      made.push(await create({ name, cpu, labels: { label } }, by));
  });
  const named = async (query: string): Promise<string[]> => {
    const found = await ids(query, by);
    return found.map((id) => made.find((one) => one.id === id)?.name ?? '?');
  };

  it('pages with cursors in every order', async () => {
    assert.deepEqual(await named(''), ['beta', 'alps', 'Alpha']);
    for (const sort of ['name', 'cpu', 'memoryGib', 'diskGib', 'lastActivityAt', 'createdAt'])
      for (const order of ['asc', 'desc']) {
        const all = await named(`sort=${sort}&order=${order}`);
        const paged: string[] = [];
        let cursor: string | null = '';
        while (cursor !== null) {
          const { body } = await by('GET', `/sandbox?limit=1&sort=${sort}&order=${order}&cursor=${cursor}`);
          paged.push(...body.items.map(({ name }: { name: string }) => name));
          cursor = body.nextCursor;
        }
        assert.deepEqual(paged, all, `${sort} ${order}`);
        assert.equal(paged.length, 3);
      }
    assert.deepEqual(await named('sort=cpu&order=asc'), ['Alpha', 'alps', 'beta']);
  });

  it('filters by prefixes, labels, states, sizes and times', async () => {
    const [alpha] = made;
    const uuid = (await inspect(world.database, { uuid: uuidOf(alpha?.id ?? '') })).id;
    const rows: [string, string[]][] = [
      ['name=AL', ['alps', 'Alpha']],
      ['name=ph', []],
      ['name=%25', []],
      [`id=${alpha?.id}`, ['Alpha']],
      [`id=${alpha?.id.slice(0, 12).toUpperCase()}`, ['Alpha']],
      [`id=${uuid.slice(0, 12)}`, ['Alpha']],
      ['id=he', ['beta', 'alps', 'Alpha']],
      ['id=here-', ['beta', 'alps', 'Alpha']],
      ['id=here-!', []],
      [`labels=${encodeURIComponent('{"label":"x"}')}`, ['beta', 'Alpha']],
      ['labels=%7B%7D', ['beta', 'alps', 'Alpha']],
      ['states=started&states=error', ['beta', 'alps', 'Alpha']],
      ['states=archived', []],
      ['snapshots=busybox', ['beta', 'alps', 'Alpha']],
      ['regionIds=there', []],
      ['minCpu=2&maxCpu=2', ['alps']],
      ['minMemoryGiB=1&maxMemoryGiB=1.5', ['beta', 'alps', 'Alpha']],
      ['minDiskGiB=4', []],
      [
        `createdAtAfter=${encodeURIComponent(alpha?.createdAt ?? '')}&createdAtBefore=2100-01-01T00:00:00Z&maxCpu=1`,
        ['Alpha'],
      ],
      ['lastEventBefore=2001-01-01', []],
      ['isPublic=true', []],
      ['isPublic=false&isRecoverable=false', ['beta', 'alps', 'Alpha']],
    ];
    for (const [query, names] of rows) assert.deepEqual(await named(query), names, query);
  });

  it('refuses malformed parameters', async () => {
    const cursor = (value: unknown, sort = 'createdAt', id: unknown = newUuid(), version = 1): string => {
      const json = JSON.stringify([version, sort, 'desc', value, id]);
      return `sort=${sort}&cursor=${Buffer.from(json).toString('base64url')}`;
    };
    const time = '2026-01-02 03:04:05.678+00';
    assert.deepEqual(await named(cursor(time)), []);
    for (const query of [
      'cursor=abc',
      'cursor=bnVsbA',
      `cursor=${'A'.repeat(4000)}`,
      ...[
        '2026-13-45 00:00:00+00',
        '2026-02-30 00:00:00+00',
        '0000-01-01 00:00:00+00',
        `${time}9`,
        null,
        7,
      ].map((value) => cursor(value)),
      cursor('2026-01-01 00:00:00+99'),
      cursor(time, 'createdAt', 'x'),
      cursor(time, 'createdAt', newUuid(), 2),
      cursor('1e9', 'cpu'),
      cursor('99999999999', 'diskGib'),
      cursor('a\0', 'name'),
      'limit=1.5',
      'sort=size',
      'order=up',
      'limit=x',
      'labels=%5B%5D',
      'labels=x',
      `labels=${encodeURIComponent(String.raw`{"a":"\ud800"}`)}`,
      'minCpu=-1',
      'createdAtAfter=x',
      'isPublic=1',
      'name=a&name=b',
      'name=%00',
      'states=%27',
    ])
      await refused(by('GET', `/sandbox?${query}`), 400);
    const { body } = await by('GET', '/sandbox?limit=1');
    assert.match(
      await refused(by('GET', `/sandbox?sort=name&cursor=${body.nextCursor}`), 400),
      /malformed cursor/,
    );
  });
});
