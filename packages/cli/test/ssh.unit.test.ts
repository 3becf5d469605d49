import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parseForward } from '../src/commands/ssh.ts';

test('a forward: a port, another local port, and a host as the sandbox sees it', () => {
  assert.deepEqual(parseForward('80'), { local: 80, to: 'localhost:80' });
  assert.deepEqual(parseForward('8080:80'), { local: 8080, to: 'localhost:80' });
  assert.deepEqual(parseForward('8080:db.internal:5432'), { local: 8080, to: 'db.internal:5432' });
  assert.deepEqual(parseForward('8080:10.0.0.7:5432'), { local: 8080, to: '10.0.0.7:5432' });
  assert.deepEqual(parseForward('8080:[::1]:5432'), { local: 8080, to: '[::1]:5432' });
  for (const wrong of ['', '0', '65536', '80:', '80:70000', 'db:80', '80:db', '1:2:3:4', '8080:-oProxy:1'])
    assert.throws(() => parseForward(wrong), /a forward is PORT/, wrong);
});
