import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { testKeys } from '@releap/testing/keys';
import { startS3Server } from '@releap/testing/s3-server';
import { startWorld, until, type World } from '@releap/testing/world';
import { home, type Home } from './home.ts';
import { json, type Outcome, rlpHere } from './rlp.ts';
import { newProject, type Project } from './world.ts';

const keys = testKeys();
let world: World;
let project: Project;
let folder: Home;
before(async () => {
  world = await startWorld({ keys });
  project = await newProject(world);
  folder = await home({ url: world.url, internalUrl: world.internalUrl, key: project.key });
});
after(async () => {
  await folder[Symbol.asyncDispose]();
  await world[Symbol.asyncDispose]();
});

const region = (...args: string[]): Promise<Outcome> =>
  rlpHere(null, ['region', ...args], { env: { RELEAP_HOME: folder.path } });
const done = async (...args: string[]): Promise<string> => {
  const { code, stdout, stderr } = await region(...args);
  assert.equal(code, 0, stderr);
  return stdout;
};

describe('rlp region', () => {
  test('creates, lists, changes and deletes regions and global regions', async () => {
    assert.equal(await done('global', 'create', 'europe', '--name', 'Europe'), 'europe\n');
    assert.equal(await done('create', 'north', '--name', 'North', '--global', 'europe'), 'north\n');
    await done('set', 'north', '--toolbox-url', 'https://gw.north.test', '--preview-url', 'https://p.test');
    assert.match(
      await done(),
      /^north +North +enabled +europe +0 +0 +https:\/\/gw\.north\.test +https:\/\/p\.test +-$/m,
    );
    assert.match(await done('ls'), /^here +Here +enabled, default +- .*\n[^]*^europe +Europe +north$/m);
    await done('set', 'north', '--default');
    const last = await region('set', 'north', '--disable');
    assert.deepEqual([last.code, last.stdout], [1, '']);
    assert.match(last.stderr, /make another one the default first/);
    await done('set', 'here', '--default');
    await done('set', 'north', '--disable', '--no-global', '--toolbox-url', '');
    assert.match(await done(), /^north +North +disabled +- +0 +0 +- +https:\/\/p\.test +-$/m);
    assert.equal(await done('store', 'north', 'none'), 'none\n');
    await done('default', 'here', '--project', project.projectId);
    await done('default', 'none', '--project', project.projectId, '--json');
    await done('global', 'rename', 'europe', 'EU');
    await done('global', 'rm', 'europe');
    assert.equal(await done('rm', 'north'), 'north\n');
    assert.doesNotMatch(await done(), /north|GLOBAL REGION/);
  });

  test('wrong usage, and what is not there', async () => {
    for (const [code, ...args] of [
      ['2', 'set', 'here'],
      ['2', 'set', 'here', '--enable', '--disable'],
      ['2', 'store', 'here', 'bucket', '--access-key-id', 'AKIA'],
      ['2', 'store', 'here', 's3://bucket'],
      ['4', 'store', 'nowhere', 'none'],
      ['2', 'default', 'here'],
      ['2', 'default', 'here', '--org', 'a', '--project', 'b'],
      ['4', 'drain', 'nowhere'],
    ])
      assert.equal(String((await region(...args)).code), code, args.join(' '));
    assert.match((await region('rm', 'nowhere')).stderr, /region "nowhere" not found/);
  });

  test('store gives a region a bucket, with a key from stdin, and returns it to the store of the deployment', async () => {
    const dir = await mkdtemp(path.join(tmpdir(), 'releap-region-store-'));
    await using server = await startS3Server(dir);
    const { bucket } = await server.bucket('north');
    await done('create', 'stored');
    const set = (url: string) =>
      rlpHere(
        null,
        [
          'region',
          'store',
          'stored',
          url,
          '--access-key-id',
          server.credentials.accessKeyId,
          '--endpoint',
          server.endpoint,
        ],
        { env: { RELEAP_HOME: folder.path }, input: `${server.credentials.secretAccessKey}\n` },
      );
    const outcome = await set(`s3://${bucket}/images/`);
    assert.deepEqual(outcome, { code: 0, stdout: `s3://${bucket}/images\n`, stderr: '' });
    assert.match(await done(), /^stored +.* +s3:\/\/north\/images$/m);
    const refused = await set('s3://missing');
    assert.equal(refused.code, 1, refused.stderr);
    assert.match(refused.stderr, /the bucket "missing" cannot be used/);
    assert.equal(await done('store', 'stored', 'none'), 'none\n');
    assert.match(await done(), /^stored +.* +-$/m);
    await done('set', 'stored', '--disable');
    assert.equal(await done('rm', 'stored'), 'stored\n');
    await rm(dir, { recursive: true, force: true });
  });

  test('drain takes the sandboxes off every host of a region, and off no other', async () => {
    await done('create', 'east');
    const ids = [(await world.runner({ region: 'east' })).id, (await world.runner({ region: 'east' })).id];
    const other = await world.runner();
    await until(async () => (await project.call('GET', '/regions')).body.length === 2);
    const kept = await project.create('kept', { region: 'east', persistent: true });
    const brief = await project.create('brief', { region: 'east' });
    await project.create('elsewhere');
    await done('set', 'east', '--disable');
    const outcome = await region('drain', 'east', '--force', '--wait', '--json');
    assert.equal(outcome.code, 0, outcome.stderr);
    const { hosts } = json(outcome) as { hosts: { id: string; draining: boolean }[] };
    assert.deepEqual(
      hosts.map(({ id, draining }) => [id, draining]),
      ids.toSorted().map((id) => [id, true]),
    );
    assert.deepEqual([await project.status(kept.id), await project.status(brief.id)], ['paused', 'deleted']);
    const { hosts: all } = (await world.operator('GET', '/operator/hosts')).body;
    assert.equal(all.find(({ id }: { id: string }) => id === other.id).draining, false);
    assert.match(await done('drain', 'east'), new RegExp(`^${ids[0]} +online, drained +`, 'm'));
  });
});
