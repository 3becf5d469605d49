import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { testKeys } from '@releap/testing/keys';
import { json } from './rlp.ts';
import { startService } from './world.ts';

const keys = testKeys();
const service = await startService({ keys });

describe('rlp volume', () => {
  test('create, ls, show and rm', async () => {
    const project = await service.project();
    const created = await project.rlp(['volume', 'create', 'data', '--size', '1t']);
    assert.deepEqual(created, { code: 0, stdout: 'data\n', stderr: '' });
    const other = json(await project.rlp(['volume', 'create', 'other', '--json']));
    assert.deepEqual([other['name'], other['size_gb']], ['other', 100]);
    assert.match(
      (await project.rlp(['volume'])).stdout,
      /^NAME .*\nother +100 GiB +- +ready +- .*\ndata +1024 GiB +- +ready +- .*\n$/,
    );
    const { stdout: shown } = await project.rlp(['volume', 'show', 'data']);
    assert.match(shown, /^name: +data\nid: +[0-9a-f-]{36}\nstate: +ready\nsize: +1024 GiB\ncreated: /);
    assert.equal(json(await project.rlp(['volume', 'show', String(other['id']), '--json']))['name'], 'other');
    const gone = await project.rlp(['volume', 'rm', 'data', String(other['id'])]);
    assert.deepEqual(gone, { code: 0, stdout: `data\n${String(other['id'])}\n`, stderr: '' });
    assert.equal((await project.rlp(['volume', 'ls', '--json'])).stdout, '[]\n');
    assert.match((await project.rlp(['volume', 'ls', '-a'])).stdout, /^data-deleted .* deleted /m);
  });

  test('run -v: volumes of a create, whole or a folder of them; one that is attached is not deleted', async () => {
    const project = await service.project();
    assert.equal((await project.rlp(['volume', 'create', 'data'])).code, 0);
    const volumes = ['-v', 'data:/a', '--volume', 'data:/b c:sub/folder'];
    const ran = await project.rlp(['run', '--name', 'user', ...volumes, 'busybox']);
    assert.equal(ran.code, 0, ran.stderr);
    const uuid = project.uuidOf(ran.stdout.trim());
    const { rows } = await service.world.database.pool.query(
      'select mount_path, subpath from volume_attachments where sandbox_id = $1 order by position',
      [uuid],
    );
    assert.deepEqual(rows, [
      { mount_path: '/a', subpath: null },
      { mount_path: '/b c', subpath: 'sub/folder' },
    ]);
    const used = await project.rlp(['volume', 'rm', 'data']);
    assert.equal(used.code, 1);
    assert.match(used.stderr, /attached/);
    for (const [text, code, said] of [
      ['data', 2, /a volume is NAME:\/path/],
      ['data:path', 2, /a volume is NAME:\/path/],
      [':/path', 2, /a volume is NAME:\/path/],
      ['./folder:/path', 2, /local folder.*rlp volume cp/],
      ['none:/path', 4, /none/],
      ['data:/proc', 1, /reserved/],
      ['data:/x:../up', 1, /subpath/],
    ] as const) {
      const refused = await project.rlp(['run', '--no-wait', '-v', text, 'busybox']);
      assert.equal(refused.code, code, `${text}: ${refused.stderr}`);
      assert.match(refused.stderr, said);
    }
  });

  test('history, restore and commit', async () => {
    const project = await service.project();
    const { id } = json(await project.rlp(['volume', 'create', 'data', '--json']));
    // As hosts would commit.
    const commits = ['aaaa1111-0000-4000-8000-000000000001', 'aaaa2222-0000-4000-8000-000000000002'];
    for (const [index, commit] of commits.entries()) {
      const digest = `sha256:${String(index).repeat(64)}`;
      const { pool } = service.world.database;
      await pool.query('insert into blobs (digest, bytes) values ($1, 1)', [digest]);
      await pool.query(
        `insert into volume_manifests (volume_id, number, id, root, reason, used_bytes, files, created_at)
         values ($1, $2::integer, $3, $4, 'background', 4096, $2::integer, now() - interval '1 hour')`,
        [id, index + 1, commit, digest],
      );
      await pool.query('update volumes set head = $2::integer where id = $1', [id, index + 1]);
    }
    const listed = await project.rlp(['volume', 'history', 'data']);
    assert.match(
      listed.stdout,
      /^COMMIT .*\naaaa2222-\S+ .* background +4 KiB +2 +-\naaaa1111-\S+ .* background +4 KiB +1 +-\n$/,
    );
    const restored = await project.rlp(['volume', 'restore', 'data', 'aaaa1']);
    assert.equal(restored.code, 0, restored.stderr);
    const after = await project.rlp(['volume', 'history', 'data']);
    assert.match(after.stdout, new RegExp(`^${restored.stdout.trim()} .* restore of ${commits[0]} `, 'm'));
    // No host has it, so nothing is to be committed.
    assert.deepEqual(await project.rlp(['volume', 'commit', 'data']), restored);
    for (const [args, code] of [
      [['restore', 'data', 'aaaa'], 1],
      [['restore', 'data', 'bbbb'], 4],
      [['restore', 'data', 'aa'], 2],
      [['restore', 'data', 'bbbb1111-0000-4000-8000-000000000001'], 4],
      [['history', 'none'], 4],
      [['commit', 'none'], 4],
      [['history', ''], 2],
    ] as const)
      assert.equal((await project.rlp(['volume', ...args])).code, code, args.join(' '));
  });

  test('cp: what it refuses before it makes a sandbox', async () => {
    const project = await service.project();
    assert.equal((await project.rlp(['volume', 'create', 'data'])).code, 0);
    for (const [from, to, code, said] of [
      ['a', 'b', 2, /VOLUME:PATH/],
      ['data:a', 'data:b', 2, /VOLUME:PATH/],
      ['/no/such/file', 'data:', 1, /no such file/],
      ['data:/a/../../etc', 'b', 2, /has a part \.\./],
      ['none:/a', 'b', 4, /none/],
    ] as const) {
      const refused = await project.rlp(['volume', 'cp', from, to]);
      assert.equal(refused.code, code, refused.stderr);
      assert.match(refused.stderr, said);
    }
    assert.deepEqual((await project.call('GET', '/vms')).body.vms, []);
  });

  test('refusals: sizes and names that are not valid, a name that is taken, an unknown volume', async () => {
    const project = await service.project();
    assert.equal((await project.rlp(['volume', 'create', 'taken'])).code, 0);
    for (const [args, code, said] of [
      [['create', 'x', '--size', '1.5g'], 2, /whole GiB/],
      [['create', 'x', '--size', '0'], 2, /whole GiB/],
      [['create', 'x', '--size', '10001'], 1, /size_gb/],
      [['create', 'a b'], 1, /name/],
      [['create', 'taken'], 1, /taken/],
      [['show', 'none'], 4, /none/],
      [['rm', 'none'], 4, /none/],
      [['rm', ''], 2, /empty/],
    ] as const) {
      const refused = await project.rlp(['volume', ...args]);
      assert.equal(refused.code, code, `${args.join(' ')}: ${refused.stderr}`);
      assert.match(refused.stderr, said);
    }
  });
});
