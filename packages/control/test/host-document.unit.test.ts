import assert from 'node:assert/strict';
import { Readable } from 'node:stream';
import { it } from 'node:test';
import { Type } from 'typebox';
import { Compile } from 'typebox/compile';
import { hostDocument } from '../src/fleet/runners/host-client.ts';

const NAMED = Compile(Type.Object({ name: Type.String() }));

const read = async (...chunks: string[]): Promise<{ name: string }> =>
  await hostDocument(Readable.from(chunks.map((chunk) => Buffer.from(chunk))), NAMED, {
    maxBytes: 16,
    shown: 'sandbox "x"',
  });

it('a document of a host is read as a whole', async () => {
  assert.deepEqual(await read('{"name":', '"abcde"}'), { name: 'abcde' });
});

it('one that is too long or of another form is the fault of the host', async () => {
  await assert.rejects(read('{"name":"abcde"', ' }'), {
    status: 502,
    message: 'the host of sandbox "x" sent too long an answer',
  });
  for (const text of ['', '{"name":1}', '{"name":']) {
    await assert.rejects(read(text), {
      status: 502,
      message: 'the host of sandbox "x" sent a document of another form',
    });
  }
});
