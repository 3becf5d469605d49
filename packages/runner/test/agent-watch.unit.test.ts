import assert from 'node:assert/strict';
import { it, mock } from 'node:test';
import { pino } from 'pino';
import { AgentWatch } from '../src/reconcile/agent-watch.ts';

it('an agent that does not respond for a while is reported once, and again when it responds', async () => {
  mock.timers.enable({ apis: ['setInterval'] });
  const told: string[] = [];
  let answers = true;
  let isExcused = false;
  let pings = 0;
  let onPing = (): unknown => undefined;
  const watch = new AgentWatch({
    ping: async () => {
      pings += 1;
      onPing();
      if (!answers) throw new Error('the guest agent did not answer a ping');
    },
    isExcused: () => isExcused,
    tell: (line) => told.push(line),
    log: pino({ enabled: false }),
    everyMs: 10,
  });
  const rounds = async (count: number): Promise<void> => {
    for (let round = 0; round < count; round += 1) {
      mock.timers.tick(10);
      await new Promise(setImmediate);
    }
  };
  try {
    await rounds(3);
    answers = false;
    await rounds(2);
    assert.deepEqual({ told, isSilent: watch.isSilent }, { told: [], isSilent: false });
    await rounds(3);
    assert.equal(watch.isSilent, true);
    assert.match(told.join(), /^the agent does not answer/);
    answers = true;
    await rounds(2);
    assert.equal(watch.isSilent, false);
    assert.deepEqual(told.slice(1), ['the agent answers again']);
    // The guest is stopped after it was asked.
    answers = false;
    onPing = () => (isExcused = true);
    for (let round = 0; round < 5; round += 1) {
      await rounds(1);
      isExcused = false;
    }
    assert.equal(watch.isSilent, false);
    const before = pings;
    isExcused = true;
    await rounds(3);
    watch.close();
    isExcused = false;
    await rounds(3);
    assert.equal(pings, before);
  } finally {
    watch.close();
    mock.timers.reset();
  }
});

it('what follows an answer fails without making the agent look silent', async () => {
  mock.timers.enable({ apis: ['setInterval'] });
  let answered = 0;
  const watch = new AgentWatch({
    ping: async () => undefined,
    onAnswer: async () => {
      answered += 1;
      throw new Error('the clock could not be read');
    },
    isExcused: () => false,
    tell: () => assert.fail('the agent answers'),
    log: pino({ enabled: false }),
    everyMs: 10,
  });
  try {
    for (let round = 0; round < 5; round += 1) {
      mock.timers.tick(10);
      await new Promise(setImmediate);
    }
    assert.deepEqual({ answered, isSilent: watch.isSilent }, { answered: 5, isSilent: false });
  } finally {
    watch.close();
    mock.timers.reset();
  }
});
