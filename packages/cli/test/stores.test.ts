import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { testKeys } from '@releap/testing/keys';
import { json } from './rlp.ts';
import { type Project, startService } from './world.ts';

const keys = testKeys();
const service = await startService({ keys });

const credentials = ['--access-key-secret', 'ID', '--secret-key-secret', 'KEY'];
async function projectWithSecrets(): Promise<Project> {
  const project = await service.project();
  for (const name of ['ID', 'KEY', 'TOKEN'])
    assert.equal((await project.rlp(['secret', 'set', name], { input: 'x' })).code, 0);
  return project;
}

describe('rlp store', () => {
  test('add, ls and rm', async () => {
    const project = await projectWithSecrets();
    const all =
      '--session-token-secret TOKEN --endpoint http://minio:9000 --region eu-1 --prefix a/b --path-style --read-only --provider Minio --dir-cache 2m';
    const added = await project.rlp(['store', 'add', 'full', '-b', 'x', ...credentials, ...all.split(' ')]);
    assert.deepEqual(added, { code: 0, stdout: 'full\n', stderr: '' });
    const plain = await project.rlp(['store', 'add', 'plain', '-b', 'y', ...credentials, '--json']);
    assert.equal((json(plain) as { name: string }).name, 'plain');
    const [{ bucket, dir_cache_secs, path_style, read_only, provider, session_token_secret }] = (
      await project.call('GET', '/object-stores')
    ).body.object_stores.slice(1);
    assert.deepEqual(
      [bucket, dir_cache_secs, path_style, read_only, provider, session_token_secret],
      ['x', 120, true, true, 'Minio', 'TOKEN'],
    );
    assert.deepEqual(await project.rlp(['store', 'rm', 'plain']), { code: 0, stdout: 'plain\n', stderr: '' });
    const { stdout } = await project.rlp(['store', 'ls', '-a']);
    assert.match(
      stdout,
      /^NAME .*\nplain +y +- +AWS +rw +deleted .*\nfull +x +a\/b +http:\/\/minio:9000 +ro +ready .*\n$/,
    );
    assert.doesNotMatch((await project.rlp(['store'])).stdout, /plain/);
  });

  test('run --mount: the mounts of a create, with the mode of the store or of the mount', async () => {
    const project = await projectWithSecrets();
    for (const [name, ...more] of [['rw'], ['ro', '--read-only']])
      assert.equal(
        (await project.rlp(['store', 'add', name ?? '', '-b', 'x', ...credentials, ...more])).code,
        0,
      );
    const mounts = ['ro:/a', 'ro:/b/:rw', 'rw:/c d:ro', 'rw:/e'].flatMap((text) => ['--mount', text]);
    const ran = await project.rlp(['run', '--name', 'web', ...mounts, 'busybox']);
    assert.equal(ran.code, 0, ran.stderr);
    const { stdout } = await project.rlp(['store', 'mounts', 'web']);
    assert.deepEqual(
      stdout
        .split('\n')
        .slice(1, -1)
        .map((line) => line.split(/ {2,}/).slice(0, 3).join('|'))
        .sort(),
      ['/a|ro|ro', '/b|ro|rw', '/c d|rw|ro', '/e|rw|rw'],
    );
    const listed = json(await project.rlp(['store', 'mounts', 'web', '--json'])) as unknown as object[];
    assert.equal(listed.length, 4);
    const used = await project.rlp(['store', 'rm', 'rw']);
    assert.equal(used.code, 1);
    assert.match(used.stderr, /mounted/);
    for (const [text, code, said] of [
      ['rw', 2, /a mount is STORE:\/path/],
      ['rw:relative', 2, /a mount is STORE:\/path/],
      [':/path', 2, /a mount is STORE:\/path/],
      ['none:/path', 4, /object store "none"/],
      ['rw:/proc', 1, /reserved/],
    ] as const) {
      const refused = await project.rlp(['run', '--no-wait', '--mount', text, 'busybox']);
      assert.equal(refused.code, code, `${text}: ${refused.stderr}`);
      assert.match(refused.stderr, said);
    }
    assert.equal((await project.call('GET', '/vms')).body.vms.length, 1);
    assert.equal((await project.rlp(['store', 'mount', 'none', 'rw:/x'])).code, 4);
    assert.equal((await project.rlp(['store', 'unmount', 'web', ''])).code, 2);
  });

  test('refusals of the service are printed, and an unknown store is not found', async () => {
    const project = await projectWithSecrets();
    const unknown = 'store add s -b x --access-key-secret NONE --secret-key-secret KEY'.split(' ');
    const missing = await project.rlp(unknown);
    assert.equal(missing.code, 1);
    assert.match(missing.stderr, /no secret "NONE"/);
    assert.equal((await project.rlp(['store', 'add', 's', '-b', 'x'])).code, 2);
    assert.equal(
      (await project.rlp(['store', 'add', 's', '-b', 'x', ...credentials, '--provider', 'X'])).code,
      2,
    );
    assert.equal((await project.rlp(['store', 'rm', 'none'])).code, 4);
    assert.equal((await project.rlp(['store', 'rm', ''])).code, 2);
  });
});
