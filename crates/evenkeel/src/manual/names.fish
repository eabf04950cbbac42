
# Names of the running server, where a command takes one.
complete -c evenkeel -n "__fish_seen_subcommand_from tenant; and __fish_seen_subcommand_from show set remove" -f -a "(evenkeel names tenants 2>/dev/null)"
complete -c evenkeel -n "__fish_seen_subcommand_from why" -f -a "(evenkeel names tenants 2>/dev/null)"
complete -c evenkeel -n "__fish_seen_subcommand_from pool; and __fish_seen_subcommand_from show set remove" -f -a "(evenkeel names pools 2>/dev/null)"
complete -c evenkeel -n "__fish_seen_subcommand_from volume; and __fish_seen_subcommand_from show set grow remove" -f -a "(evenkeel names volumes 2>/dev/null)"
complete -c evenkeel -n "__fish_seen_subcommand_from history volume" -l tenant -x -a "(evenkeel names tenants 2>/dev/null)"
complete -c evenkeel -n "__fish_seen_subcommand_from history suggest record volume tenant" -l pool -x -a "(evenkeel names pools 2>/dev/null)"
