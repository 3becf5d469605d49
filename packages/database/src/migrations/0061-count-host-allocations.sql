-- compatible-with: 43
-- transaction: none
-- Counts what is allocated on each host when the triggers are installed. A host is locked while it is counted, the others are not.
do $$
declare host uuid;
begin
  for host in select id from runners order by id loop
    perform recount_host_allocation(host);
    commit;
  end loop;
end $$;
