/** `rlp fn schedule`. */
import { usageError } from '../cli-error.ts';
import { shortTime, showTable } from '../output/table.ts';
import { openService } from '../service.ts';
import { type Context, show } from '../terminal.ts';
import { forEachNamed } from './each.ts';

/** Prints the id. */
export async function addSchedule(
  context: Context,
  name: string,
  cron: string,
  payload: string | undefined,
  options: { disabled?: boolean },
): Promise<number> {
  const created = await openService(context).api.createSchedule({
    params: { name },
    body: {
      cron,
      payload: payload === undefined ? undefined : parsePayload(payload),
      enabled: !options.disabled,
    },
  });
  return show(context, created, () => created.id);
}

function parsePayload(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    throw usageError(`a payload is JSON, as in '{"n": 1}' or '"text"', but was ${JSON.stringify(text)}`);
  }
}

export async function listSchedules(context: Context, name: string): Promise<number> {
  const { schedules } = await openService(context).api.listSchedules({ params: { name } });
  return showTable(context, schedules, ['ID', 'CRON', 'ENABLED', 'NEXT', 'LAST', 'PAYLOAD'], (one) => [
    one.id,
    one.cron,
    one.enabled ? 'yes' : 'no',
    one.next_run_at === null ? '-' : shortTime(one.next_run_at),
    one.last_run_at === null ? '-' : shortTime(one.last_run_at),
    JSON.stringify(one.payload).slice(0, 60),
  ]);
}

export async function changeSchedule(
  context: Context,
  name: string,
  id: string,
  {
    cron,
    payload,
    enable,
    disable,
  }: { cron?: string; payload?: string; enable?: boolean; disable?: boolean },
): Promise<number> {
  const body = {
    ...(cron === undefined ? {} : { cron }),
    ...(payload === undefined ? {} : { payload: parsePayload(payload) }),
    ...(enable ? { enabled: true } : {}),
    ...(disable ? { enabled: false } : {}),
  };
  if (Object.keys(body).length === 0)
    throw usageError('nothing to change: --cron, --payload, --enable and --disable change it');
  const changed = await openService(context).api.updateSchedule({ params: { name, id }, body });
  return show(context, changed, () =>
    changed.next_run_at === null ? `${id} does not fire` : `${id} fires next at ${changed.next_run_at}`,
  );
}

export async function removeSchedules(context: Context, name: string, ids: string[]): Promise<number> {
  const { api } = openService(context);
  return await forEachNamed(context, 'schedule', ids, async (id) => {
    await api.deleteSchedule({ params: { name, id } });
    return { status: 'deleted', printed: id };
  });
}
