# flashmask show --svg and --png

    $ flashmask show --mask causal --seq 8 --tile 4x4 --width 0 --svg a.svg --png a.png | head -n 1
    spec      causal
    $ head -c 4 a.png | tail -c 3; echo
    PNG
    $ cat a.svg
    <svg xmlns="http://www.w3.org/2000/svg" width="1002" height="748" font-family="sans-serif" font-size="13" fill="#1f2733">
    <style>.ticks path { stroke: #47505e; fill: none; }</style>
    <rect width="100%" height="100%" fill="#ffffff"/>
    <text x="84" y="26" font-size="16" font-weight="bold">causal</text>
    <g shape-rendering="crispEdges" transform="translate(84 84) scale(80.000000 80.000000)">
    <path fill="#f7f8fa" d="M4 0h4v1h-4zM4 1h4v1h-4zM4 2h4v1h-4zM4 3h4v1h-4z"/>
    <path fill="#fde8ce" d="M1 0h3v1h-3zM2 1h2v1h-2zM3 2h1v1h-1zM5 4h3v1h-3zM6 5h2v1h-2zM7 6h1v1h-1z"/>
    <path fill="#d97706" d="M0 0h1v1h-1zM0 1h2v1h-2zM0 2h3v1h-3zM0 3h4v1h-4zM4 4h1v1h-1zM4 5h2v1h-2zM4 6h3v1h-3zM4 7h4v1h-4z"/>
    <path fill="#1d64ab" d="M0 4h4v1h-4zM0 5h4v1h-4zM0 6h4v1h-4zM0 7h4v1h-4z"/>
    </g>
    <path fill="none" stroke-opacity="0.75" stroke-width="0.75" stroke="#cbd0d8" d="M84 84M84 404.00h640.00M404.00 84v640.00"/>
    <g stroke="#47505e" fill="none"><rect x="84" y="84" width="640.00" height="640.00"/></g>
    <g font-size="11" class="ticks">
    <path d="M84.00 84v-5"/><text x="84.00" y="75" text-anchor="middle">0</text>
    <path d="M164.00 84v-5"/><text x="164.00" y="75" text-anchor="middle">1</text>
    <path d="M244.00 84v-5"/><text x="244.00" y="75" text-anchor="middle">2</text>
    <path d="M324.00 84v-5"/><text x="324.00" y="75" text-anchor="middle">3</text>
    <path d="M404.00 84v-5"/><text x="404.00" y="75" text-anchor="middle">4</text>
    <path d="M484.00 84v-5"/><text x="484.00" y="75" text-anchor="middle">5</text>
    <path d="M564.00 84v-5"/><text x="564.00" y="75" text-anchor="middle">6</text>
    <path d="M644.00 84v-5"/><text x="644.00" y="75" text-anchor="middle">7</text>
    <path d="M724.00 84v-5"/><text x="724.00" y="75" text-anchor="middle">8</text>
    <path d="M84 84.00h-5"/><text x="75" y="88.00" text-anchor="end">0</text>
    <path d="M84 164.00h-5"/><text x="75" y="168.00" text-anchor="end">1</text>
    <path d="M84 244.00h-5"/><text x="75" y="248.00" text-anchor="end">2</text>
    <path d="M84 324.00h-5"/><text x="75" y="328.00" text-anchor="end">3</text>
    <path d="M84 404.00h-5"/><text x="75" y="408.00" text-anchor="end">4</text>
    <path d="M84 484.00h-5"/><text x="75" y="488.00" text-anchor="end">5</text>
    <path d="M84 564.00h-5"/><text x="75" y="568.00" text-anchor="end">6</text>
    <path d="M84 644.00h-5"/><text x="75" y="648.00" text-anchor="end">7</text>
    <path d="M84 724.00h-5"/><text x="75" y="728.00" text-anchor="end">8</text>
    </g>
    <text x="404.00" y="54" text-anchor="middle">keys</text>
    <text transform="translate(20 404.00) rotate(-90)" text-anchor="middle">query rows</text>
    <rect x="752.00" y="84.00" width="16" height="16" stroke="#47505e" stroke-width="0.5" fill="#1d64ab"/><text x="778.00" y="96.50">full tiles</text>
    <rect x="752.00" y="108.00" width="16" height="16" stroke="#47505e" stroke-width="0.5" fill="#d97706"/><text x="778.00" y="120.50">partial: visible</text>
    <rect x="752.00" y="132.00" width="16" height="16" stroke="#47505e" stroke-width="0.5" fill="#f4b160"/><text x="778.00" y="144.50">partial: partly visible</text>
    <rect x="752.00" y="156.00" width="16" height="16" stroke="#47505e" stroke-width="0.5" fill="#fde8ce"/><text x="778.00" y="168.50">partial: hidden</text>
    <rect x="752.00" y="180.00" width="16" height="16" stroke="#47505e" stroke-width="0.5" fill="#f7f8fa"/><text x="778.00" y="192.50">skipped tiles</text>
    <text x="752.00" y="228.00">4 tiles of 4 x 4</text>
    <text x="752.00" y="248.00">full 1 (25.0%)</text>
    <text x="752.00" y="268.00">partial 2 (50.0%)</text>
    <text x="752.00" y="288.00">skipped 1 (25.0%)</text>
    <text x="752.00" y="312.00">tile efficiency 75.0%</text>
    <text x="752.00" y="332.00">visible pairs 56.25%</text>
    </svg>

Titles are text, whatever is in them, and long ones are cut.

    $ npy 'a<&>.npy' "{'descr': '<i4', 'fortran_order': False, 'shape': (1, 1), }" '\001\000\000\000'
    $ flashmask show --vectors 'a<&>.npy' --causal 1 --width 0 --svg b.svg >/dev/null; grep bold b.svg
    <text x="84" y="26" font-size="16" font-weight="bold">a&lt;&amp;&gt;.npy</text>
    $ flashmask show --mask documents:lengths=1$(printf '+1%.0s' $(seq 100)) --width 0 --svg c.svg >/dev/null; grep bold c.svg
    <text x="84" y="26" font-size="16" font-weight="bold">documents:lengths=1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1...</text>

Nothing is left behind where one of two files cannot be written.

    $ flashmask show --mask causal --png d.png --svg no/d.svg
    ! flashmask: no/d.svg: cannot be written: No such file or directory
    [2]
    $ flashmask show --mask causal --png /dev/null
    ! flashmask: /dev/null: is there and is no plain file
    [2]
    $ flashmask show --mask causal --png d.png --svg d.png
    ! flashmask: d.png: two results would have this name
    [2]
    $ flashmask show --mask causal --png d.png --svg ./d.png
    ! flashmask: ./d.png: two results would have this name
    [2]
    $ flashmask show --mask causal --png d.png --svg "$PWD/d.png" 2>&1 | sed 's/.*: //'
    two results would have this name
    $ flashmask show --mask document:lengths=0 --png d.png
    ! flashmask: --png: the mask has no pairs, nothing to draw
    [2]
    $ flashmask show --mask document:lengths=0 --svg d.svg --json
    ! flashmask: --svg: the mask has no pairs, nothing to draw
    [2]

A name that is no UTF-8: the title has question marks, and JSON is refused before a picture is written.

    $ name=$(printf 'n\377\303.txt'); echo 3 >"$name"
    $ flashmask show --mask "document:file=$name" --width 0 --svg e.svg >e.txt; sed -n 's/.*bold">//p' e.svg
    document:file=n??.txt</text>
    $ flashmask show --mask "document:file=$name" --json --png d.png
    ! flashmask: --json: the name of the mask is not valid UTF-8
    [2]
    $ rm "$name" e.txt
    $ ls
    a.png
    a.svg
    a<&>.npy
    b.svg
    c.svg
    e.svg
